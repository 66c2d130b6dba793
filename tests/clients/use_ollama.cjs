// The npm package ollama, used as its documentation says. Prints what came back as JSON.
const { createRequire } = require("node:module");
const [modules, url] = process.argv.slice(2);
const { Ollama } = createRequire(`${modules}/`)("ollama");

const client = new Ollama({ host: url.replace(/\/v1$/, ""), headers: { Authorization: "Bearer k" } });
const model = "fake-model";
const messages = [{ role: "user", content: "Hello" }];
const parameters = { type: "object", properties: { location: { type: "string" } } };
const tools = [{ type: "function", function: { name: "get_weather", description: "", parameters } }];
const format = { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } } };

async function main() {
  const said = {};
  said.answer = (await client.chat({ model, messages })).message.content;
  said.stream = "";
  for await (const piece of await client.chat({ model, messages, stream: true })) said.stream += piece.message.content;
  const [call] = (await client.chat({ model, messages, tools })).message.tool_calls;
  said.call = [call.function.name, call.function.arguments];
  said.person = JSON.parse((await client.chat({ model, messages, format })).message.content);
  said.models = (await client.list()).models.map((each) => each.name);
  try {
    await client.chat({ model: "nobody", messages });
  } catch (error) {
    said.error = error.status_code === 404 ? "NotFoundError" : String(error);
  }
  console.log(JSON.stringify(said));
}

main();
