"""langchain-ollama, used as its documentation says. Prints what came back as JSON."""

import json
import sys

import ollama
from langchain_ollama import ChatOllama
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(location: str) -> str:
    """Report the weather."""
    return location


options = {
    "base_url": sys.argv[1].removesuffix("/v1"),
    "client_kwargs": {"headers": {"Authorization": "Bearer k"}},
    "validate_model_on_init": False,
}
chat = ChatOllama(model="fake-model", **options)
results = {"answer": chat.invoke("Hello").text}
results["stream"] = "".join(chunk.text for chunk in chat.stream("Hello"))
(call,) = chat.bind_tools([get_weather]).invoke("Weather?").tool_calls
results["call"] = [call["name"], call["args"]]
results["person"] = chat.with_structured_output(Person).invoke("Who?").model_dump()
try:
    ChatOllama(model="nobody", **options).invoke("Hello")
except ollama.ResponseError as error:
    results["error"] = "NotFoundError" if error.status_code == 404 else str(error)
print(json.dumps(results))
