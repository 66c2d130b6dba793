"""Ollama's own package, used as its documentation says. Prints what came back as JSON."""

import json
import sys

import ollama
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(location: str) -> str:
    """Report the weather."""
    return location


client = ollama.Client(host=sys.argv[1].removesuffix("/v1"), headers={"Authorization": "Bearer k"})
messages = [{"role": "user", "content": "Hello"}]
said = {"answer": client.chat("fake-model", messages).message.content}
said["stream"] = "".join(piece.message.content or "" for piece in client.chat("fake-model", messages, stream=True))
(call,) = client.chat("fake-model", messages, tools=[get_weather]).message.tool_calls
said["call"] = [call.function.name, dict(call.function.arguments)]
person = client.chat("fake-model", messages, format=Person.model_json_schema()).message.content
said["person"] = Person.model_validate_json(person).model_dump()
said["loaded"] = client.generate("fake-model").done_reason
said["models"] = [model.model for model in client.list().models]
try:
    client.chat("nobody", messages)
except ollama.ResponseError as error:
    said["error"] = "NotFoundError" if error.status_code == 404 else str(error)
print(json.dumps(said))
