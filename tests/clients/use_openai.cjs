// The npm package openai, used as its documentation says. Prints what came back as JSON.
const [modules, baseURL] = process.argv.slice(2);
const OpenAI = require(`${modules}/openai`).default;

const client = new OpenAI({ baseURL, apiKey: "k", maxRetries: 0 });
const model = "fake-model";
const messages = [{ role: "user", content: "Hello" }];
const parameters = { type: "object", properties: { location: { type: "string" } } };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const schema = { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } } };

async function main() {
  const said = {};
  said.answer = (await client.chat.completions.create({ model, messages })).choices[0].message.content;
  said.stream = "";
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    said.stream += chunk.choices[0]?.delta?.content ?? "";
  }
  const final = await client.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
  const call = final.choices[0].message.tool_calls[0].function;
  said.call = [call.name, JSON.parse(call.arguments)];
  const response_format = { type: "json_schema", json_schema: { name: "person", schema } };
  const person = await client.chat.completions.create({ model, messages, response_format });
  said.person = JSON.parse(person.choices[0].message.content);
  said.response = (await client.responses.create({ model, input: "Hello" })).output_text;
  said.models = (await client.models.list()).data.map((card) => card.id);
  try {
    await client.chat.completions.create({ model: "nobody", messages });
  } catch (error) {
    said.error = error.constructor.name;
  }
  console.log(JSON.stringify(said));
}

main();
