"""llama-index with its class for servers that are like OpenAI's. Prints what came back as JSON."""

import json
import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def get_weather(location: str) -> str:
    """Tell the weather."""
    return location


llm = OpenAILike(
    model="fake-model",
    api_base=sys.argv[1],
    api_key="k",
    max_retries=0,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
)
message = ChatMessage(role="user", content="Hello")
results = {"answer": llm.chat([message]).message.content}
results["stream"] = [piece.message.content for piece in llm.stream_chat([message])][-1]
called = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg="Weather?")
(call,) = llm.get_tool_calls_from_response(called)
results["call"] = [call.tool_name, call.tool_kwargs]
results["person"] = llm.as_structured_llm(Person).chat([message]).raw.model_dump()
try:
    OpenAILike(model="nobody", api_base=sys.argv[1], api_key="k", max_retries=0, is_chat_model=True).chat([message])
except Exception as error:
    results["error"] = type(error).__name__
print(json.dumps(results))
