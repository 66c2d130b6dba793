"""Ollama's own package, used as its documentation says. Prints what came back as JSON."""

import json
import sys

import ollama
from shared_schemas import Person, get_weather

client = ollama.Client(host=sys.argv[1].removesuffix("/v1"), headers={"Authorization": "Bearer k"})
messages = [{"role": "user", "content": "Hello"}]
results = {"answer": client.chat("fake-model", messages).message.content}
results["stream"] = "".join(piece.message.content or "" for piece in client.chat("fake-model", messages, stream=True))
(call,) = client.chat("fake-model", messages, tools=[get_weather]).message.tool_calls
results["call"] = [call.function.name, dict(call.function.arguments)]
person = client.chat("fake-model", messages, format=Person.model_json_schema()).message.content
results["person"] = Person.model_validate_json(person).model_dump()
results["loaded"] = client.generate("fake-model").done_reason
results["models"] = [model.model for model in client.list().models]
try:
    client.chat("nobody", messages)
except ollama.ResponseError as error:
    results["error"] = "NotFoundError" if error.status_code == 404 else str(error)
print(json.dumps(results))
