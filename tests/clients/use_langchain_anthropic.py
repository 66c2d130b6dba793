"""langchain-anthropic, used as its documentation says. Prints what came back as JSON."""

import json
import sys

import anthropic
from langchain_anthropic import ChatAnthropic
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(location: str) -> str:
    """Report the weather."""
    return location


options = {"base_url": sys.argv[1].removesuffix("/v1"), "api_key": "k", "max_retries": 0}
chat = ChatAnthropic(model="fake-model", **options)
results = {"answer": chat.invoke("Hello").text}
results["stream"] = "".join(chunk.text for chunk in chat.stream("Hello"))
(call,) = chat.bind_tools([get_weather]).invoke("Weather?").tool_calls
results["call"] = [call["name"], call["args"]]
results["person"] = chat.with_structured_output(Person).invoke("Who?").model_dump()
results["native"] = chat.with_structured_output(Person, method="json_schema").invoke("Who?").model_dump()
try:
    ChatAnthropic(model="nobody", **options).invoke("Hello")
except anthropic.NotFoundError as error:
    results["error"] = "NotFoundError" if isinstance(error, anthropic.NotFoundError) else "another"
print(json.dumps(results))
