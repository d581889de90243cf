// Runs scenarios of /v1/responses with one client: node responses.mjs BASE_URL CLIENT '{"scenario": "model", …}'
// Prints the results as one JSON object.
import OpenAI from "openai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [baseURL, client, jobs] = process.argv.slice(2);
const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const [first, second] = ["First question.", "Second question."];

const turns = ["turns", "thought"];

const openai = new OpenAI({ baseURL, apiKey: "any", maxRetries: 0 });

async function withOpenAI(model, scenario) {
  if (scenario === "stream" || scenario === "broken") {
    const stream = openai.responses.stream({ model, input: first });
    let text = "";
    stream.on("response.output_text.delta", (event) => { text += event.delta; });
    const final = await stream.finalResponse();
    if (final.output_text !== text) throw new Error("the deltas differ from the response");
    return { text, tokens: final.usage?.total_tokens };
  }
  if (scenario === "tool") {
    const tools = [{ type: "function", name: "get_weather", parameters: schema, strict: false }];
    const input = [{ role: "user", content: first }];
    for (;;) {
      const response = await openai.responses.create({ model, input, tools, store: false });
      const calls = response.output.filter((item) => item.type === "function_call");
      if (!calls.length) return { text: response.output_text };
      input.push(...response.output);
      for (const call of calls) {
        const output = `sunny in ${JSON.parse(call.arguments).city}`;
        input.push({ type: "function_call_output", call_id: call.call_id, output });
      }
    }
  }
  let response = await openai.responses.create({ model, input: first });
  if (turns.includes(scenario)) {
    response = await openai.responses.create({ model, input: second, previous_response_id: response.id });
  }
  return { text: response.output_text, tokens: response.usage?.total_tokens };
}

const providers = {
  "ai-openai": (model) => createOpenAI({ baseURL, apiKey: "any" }).responses(model),
  "ai-open-responses": (model) => createOpenResponses({ name: "bridge", url: `${baseURL}/responses`, apiKey: "any" })(model),
};

async function withAI(name, scenario) {
  const model = providers[client](name);
  const messages = [{ role: "user", content: first }];
  if (scenario === "stream" || scenario === "broken") {
    let failure;
    const result = streamText({ model, messages, maxRetries: 0, onError: ({ error }) => { failure = error; } });
    let text = "";
    for await (const delta of result.textStream) text += delta;
    if (failure) throw failure;
    return { text, tokens: (await result.totalUsage).totalTokens };
  }
  const get_weather = tool({ inputSchema: jsonSchema(schema), execute: async ({ city }) => `sunny in ${city}` });
  const tools = scenario === "tool" ? { get_weather } : undefined;
  let result = await generateText({ model, messages, tools, maxRetries: 0, stopWhen: stepCountIs(5) });
  if (turns.includes(scenario)) {
    messages.push(...result.response.messages, { role: "user", content: second });
    result = await generateText({ model, messages, maxRetries: 0 });
  }
  return { text: result.text, tokens: result.totalUsage.totalTokens };
}

const results = {};
for (const [scenario, model] of Object.entries(JSON.parse(jobs))) {
  try {
    results[scenario] = await (client === "openai" ? withOpenAI : withAI)(model, scenario);
  } catch (error) {
    results[scenario] = { error: String(error?.message ?? error?.error?.message ?? error) };
  }
}
console.log(JSON.stringify(results));
