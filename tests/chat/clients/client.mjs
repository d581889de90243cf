// Runs scenarios with one client: node client.mjs BASE_URL CLIENT '{"scenario": "model", …}'
// Prints the results as one JSON object.
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [baseURL, client, jobs] = process.argv.slice(2);
let model;
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const parts = [
  { type: "text", text: "What is this? 这是什么" },
  { type: "image", url: "data:image/png;base64,iVBORw0KGgo=" },
];

const openai = {
  client: new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 }),
  user: [{ role: "user", content: "hello" }],
  tools: [{ type: "function", function: { name: "get_weather", parameters: schema } }],

  async whole(more = {}) {
    const completion = await this.client.chat.completions.create({ model, messages: this.user, ...more });
    const [choice] = completion.choices;
    return { text: choice.message.content, finish: choice.finish_reason, tokens: completion.usage?.total_tokens };
  },
  async stream(more = {}) {
    const chunks = await this.client.chat.completions.create({
      model, messages: this.user, stream: true, stream_options: { include_usage: true }, ...more,
    });
    let text = "", finish = null, tokens;
    for await (const chunk of chunks) {
      text += chunk.choices[0]?.delta?.content ?? "";
      finish = chunk.choices[0]?.finish_reason ?? finish;
      tokens = chunk.usage?.total_tokens ?? tokens;
    }
    return { text, finish, tokens };
  },
  async tool() {
    const runner = this.client.chat.completions.runTools({
      model, messages: this.user, stream: true,
      tools: [{ type: "function", function: {
        name: "get_weather", parameters: schema, parse: JSON.parse, function: ({ city }) => `sunny in ${city}`,
      } }],
    });
    return { text: await runner.finalContent() };
  },
  async parts() {
    const content = [
      { type: "text", text: parts[0].text }, { type: "image_url", image_url: { url: parts[1].url } },
    ];
    return this.whole({ messages: [{ role: "user", content }] });
  },
  error(error) {
    return { status: error.status ?? null, code: error.code ?? null, message: String(error.message) };
  },
};

const ai = {
  get model() {
    return createOpenAICompatible({ name: "bridge", baseURL, apiKey: "any", includeUsage: true }).chatModel(model);
  },
  options: { prompt: "hello", maxRetries: 0 },

  async whole(more = {}) {
    const result = await generateText({ model: this.model, ...this.options, ...more });
    return { text: result.text, finish: result.finishReason, tokens: result.usage.totalTokens };
  },
  async stream(more = {}) {
    let failure;
    const result = streamText({ model: this.model, ...this.options, onError: ({ error }) => { failure = error; }, ...more });
    let text = "";
    for await (const chunk of result.textStream) text += chunk;
    if (failure) throw failure;
    return { text, finish: await result.finishReason, tokens: (await result.totalUsage).totalTokens };
  },
  async tool() {
    const get_weather = tool({
      inputSchema: jsonSchema(schema), execute: async ({ city }) => `sunny in ${city}`,
    });
    return this.stream({ tools: { get_weather }, stopWhen: stepCountIs(5) });
  },
  async parts() {
    const content = [
      { type: "text", text: parts[0].text }, { type: "file", mediaType: "image/png", data: parts[1].url },
    ];
    return this.whole({ prompt: undefined, messages: [{ role: "user", content }] });
  },
  error(error) {
    const details = error?.data?.error ?? error?.error ?? {};
    return { status: error.statusCode ?? null, code: details.code ?? null, message: String(error.message ?? error) };
  },
};

const chosen = { openai, ai }[client];
const methods = { whole: "whole", whole_tool: "whole", whole_error: "whole", parts: "parts", client_tool: "tool",
  stream: "stream", stream_tool: "stream", stream_error: "stream", stream_broken: "stream" };
const results = {};
for (const [scenario, its_model] of Object.entries(JSON.parse(jobs))) {
  model = its_model;
  try {
    const { text, finish = null, tokens = null } = await chosen[methods[scenario]]();
    results[scenario] = { text, finish, tokens };
  } catch (error) {
    results[scenario] = { error: chosen.error(error) };
  }
}
console.log(JSON.stringify(results));
