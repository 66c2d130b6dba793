// Vercel's ai with @ai-sdk/openai: openai.chat(M), and openai(M) with its defaults, which continues by references to
// stored items. Prints what came back as JSON.
const { createRequire } = require("node:module");
const [modules, baseURL] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const { generateText, streamText, generateObject, stepCountIs, tool } = load("ai");
const { createOpenAI } = load("@ai-sdk/openai");
const { z } = load("zod");

const openai = createOpenAI({ baseURL, apiKey: "k" });
const person = z.object({ name: z.string(), age: z.number().int() });

async function use(model) {
  const said = {};
  const options = { model, maxRetries: 0 };
  said.answer = (await generateText({ ...options, prompt: "Hello" })).text;
  said.stream = "";
  for await (const text of streamText({ ...options, prompt: "Hello" }).textStream) said.stream += text;
  said.person = (await generateObject({ ...options, schema: person, prompt: "Who?" })).object;
  const asked = [];
  const tools = {
    get_weather: tool({
      description: "Report the weather.",
      inputSchema: z.object({ location: z.string() }),
      execute: async ({ location }) => (asked.push(location), "Sunny"),
    }),
  };
  const messages = [];
  said.turns = [];
  for (let turn = 0; turn < 4; turn += 1) {
    messages.push({ role: "user", content: `Weather, turn ${turn}?` });
    const result = await generateText({ ...options, messages, tools, stopWhen: stepCountIs(3) });
    messages.push(...result.response.messages);
    said.turns.push([result.steps.length, result.text]);
  }
  said.asked = asked;
  return said;
}

async function main() {
  const said = { chat: await use(openai.chat("fake-model")), responses: await use(openai("fake-model")) };
  console.log(JSON.stringify(said));
}

main();
