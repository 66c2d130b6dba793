"""litellm, used as its documentation says. Prints what came back as JSON."""

import json
import sys

import litellm

litellm.num_retries = 0
OPTIONS = {"api_base": sys.argv[1], "api_key": "k"}
MESSAGES = [{"role": "user", "content": "Hello"}]
PARAMETERS = {"type": "object", "properties": {"location": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}

said = {}
answer = litellm.completion("openai/fake-model", MESSAGES, **OPTIONS)
said["answer"] = answer.choices[0].message.content
chunks = litellm.completion("openai/fake-model", MESSAGES, stream=True, **OPTIONS)
said["stream"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
chunks = list(litellm.completion("openai/fake-model", MESSAGES, tools=[TOOL], stream=True, **OPTIONS))
(call,) = litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message.tool_calls
said["call"] = [call.function.name, json.loads(call.function.arguments)]
schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
answer = litellm.completion("openai/fake-model", MESSAGES, response_format=schema, **OPTIONS)
said["person"] = json.loads(answer.choices[0].message.content)
try:
    litellm.completion("openai/nobody", MESSAGES, **OPTIONS)
except litellm.NotFoundError as error:
    said["error"] = type(error).__name__
print(json.dumps(said))
