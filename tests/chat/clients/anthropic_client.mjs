// Runs scenarios of the Messages API: node anthropic_client.mjs URL CLIENT '{"scenario": ["method", "model"], …}'
// Prints the results as one JSON object.
import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [url, client, jobs] = process.argv.slice(2);
let model;
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const user = { role: "user", content: "hello" };
const again = { role: "user", content: "and again" };

const anthropic = {
  client: new Anthropic({ baseURL: url, apiKey: "any", maxRetries: 0 }),
  tools: [{ name: "get_weather", description: "Weather.", input_schema: schema }],

  asked(messages, more) {
    return { model, max_tokens: 1000, messages, ...more };
  },
  create(messages, more = {}) {
    return this.client.messages.create(this.asked(messages, more));
  },
  streamed(messages, more = {}) {
    return this.client.messages.stream(this.asked(messages, more)).finalMessage();
  },
  result(message) {
    const text = message.content.filter((block) => block.type === "text").map((block) => block.text).join("");
    return { text, stop: message.stop_reason, tokens: message.usage.output_tokens };
  },
  async whole() {
    return this.result(await this.create([user]));
  },
  async stream() {
    return this.result(await this.streamed([user]));
  },
  async turns() {
    const first = await this.streamed([user]);
    return this.result(await this.create([user, { role: "assistant", content: first.content }, again]));
  },
  tool() {
    return this.with_tool(this.create.bind(this));
  },
  stream_tool() {
    return this.with_tool(this.streamed.bind(this));
  },
  async with_tool(ask) {
    const messages = [user];
    for (;;) {
      const message = await ask(messages, { tools: this.tools });
      const made = message.content.filter((block) => block.type === "tool_use");
      if (!made.length) return this.result(message);
      const results = made.map(({ id, input }) => ({
        type: "tool_result", tool_use_id: id, content: `sunny in ${input.city}`,
      }));
      messages.push({ role: "assistant", content: message.content }, { role: "user", content: results });
    }
  },
};

const ai = {
  get model() {
    return createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" })(model);
  },
  get tools() {
    return { get_weather: tool({ inputSchema: jsonSchema(schema), execute: async ({ city }) => `sunny in ${city}` }) };
  },
  options: { maxRetries: 0, stopWhen: stepCountIs(5) },

  async generated(messages, more = {}) {
    return generateText({ model: this.model, messages, ...this.options, ...more });
  },
  async streamed(messages, more = {}) {
    let failure;
    const onError = ({ error }) => { failure = error; };
    const result = streamText({ model: this.model, messages, ...this.options, onError, ...more });
    let text = "";
    for await (const chunk of result.textStream) text += chunk;
    if (failure) throw failure;
    const [steps, response] = [await result.steps, await result.response];
    return { ...steps.at(-1), text, messages: response.messages };
  },
  result({ text, rawFinishReason, usage }) {
    return { text, stop: rawFinishReason ?? null, tokens: usage.outputTokens };
  },
  async whole() {
    return this.result(await this.generated([user]));
  },
  async stream() {
    return this.result(await this.streamed([user]));
  },
  async turns() {
    const first = await this.streamed([user]);
    return this.result(await this.generated([user, ...first.messages, again]));
  },
  async tool() {
    return this.result(await this.generated([user], { tools: this.tools }));
  },
  async stream_tool() {
    return this.result(await this.streamed([user], { tools: this.tools }));
  },
};

const chosen = { anthropic, ai }[client];
const results = {};
for (const [scenario, [method, name]] of Object.entries(JSON.parse(jobs))) {
  model = name;
  try {
    results[scenario] = await chosen[method]();
  } catch (error) {
    const message = String(error?.message ?? error?.error?.message ?? error);
    results[scenario] = { error: { status: error?.status ?? error?.statusCode ?? null, message } };
  }
}
console.log(JSON.stringify(results));
