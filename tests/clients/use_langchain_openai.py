"""langchain-openai, used as its documentation says. Prints what came back as JSON."""

import json
import sys

import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(location: str) -> str:
    """Tell the weather."""
    return location


chat = ChatOpenAI(model="fake-model", base_url=sys.argv[1], api_key="k", max_retries=0)
results = {"answer": chat.invoke("Hello").content}
results["stream"] = "".join(chunk.content for chunk in chat.stream("Hello"))
(call,) = chat.bind_tools([get_weather]).invoke("Weather?").tool_calls
results["call"] = [call["name"], call["args"]]
results["person"] = chat.with_structured_output(Person).invoke("Who?").model_dump()
try:
    ChatOpenAI(model="nobody", base_url=sys.argv[1], api_key="k", max_retries=0).invoke("Hello")
except openai.NotFoundError as error:
    results["error"] = "NotFoundError" if isinstance(error, openai.NotFoundError) else "another"
print(json.dumps(results))
