"""litellm, used as its documentation says, by the API that the first argument names. Prints what came back as JSON."""

import json
import sys

import litellm

litellm.num_retries = 0
ROUTE, URL = sys.argv[1:]
OPTIONS = {"api_base": URL if ROUTE == "openai" else URL.removesuffix("/v1"), "api_key": "k"}
MODEL = f"{ROUTE}/fake-model"
MESSAGES = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"location": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}

results = {}
answer = litellm.completion(MODEL, MESSAGES, **OPTIONS)
results["answer"] = answer.choices[0].message.content
chunks = litellm.completion(MODEL, MESSAGES, stream=True, **OPTIONS)
results["stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
if ROUTE != "ollama":  # its prompts have no place for tools
    chunks = list(litellm.completion(MODEL, MESSAGES, tools=[TOOL], stream=True, **OPTIONS))
    (call,) = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message.tool_calls
    results["call"] = [call.function.name, json.loads(call.function.arguments)]
schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
answer = litellm.completion(MODEL, MESSAGES, response_format=schema, **OPTIONS)
results["person"] = json.loads(answer.choices[0].message.content)
try:
    litellm.completion(f"{ROUTE}/nobody", MESSAGES, **OPTIONS)
except (litellm.NotFoundError, litellm.APIConnectionError) as error:
    results["error"] = "NotFoundError" if "does not exist" in str(error) else str(error)
print(json.dumps(results))
