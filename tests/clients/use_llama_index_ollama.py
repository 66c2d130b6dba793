"""llama-index with its class for Ollama. Prints what came back as JSON."""

import json
import sys

import ollama
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(location: str) -> str:
    """Report the weather."""
    return location


client = ollama.Client(host=sys.argv[1].removesuffix("/v1"), headers={"Authorization": "Bearer k"})
llm = Ollama(model="fake-model", client=client, context_window=4096, is_function_calling_model=True)
message = ChatMessage(role="user", content="Hello")
results = {"answer": llm.chat([message]).message.content}
results["stream"] = [piece.message.content for piece in llm.stream_chat([message])][-1]
called = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg="Weather?")
(call,) = llm.get_tool_calls_from_response(called)
results["call"] = [call.tool_name, call.tool_kwargs]
results["person"] = llm.as_structured_llm(Person).chat([message]).raw.model_dump()
try:
    Ollama(model="nobody", client=client, context_window=4096).chat([message])
except ollama.ResponseError as error:
    results["error"] = "NotFoundError" if error.status_code == 404 else str(error)
print(json.dumps(results))
