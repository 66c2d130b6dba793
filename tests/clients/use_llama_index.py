"""llama-index with its class for OpenAI-like servers or for Ollama. Prints what came back as JSON."""

import json
import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from shared_schemas import Person, get_weather

api, url = sys.argv[1:]
if api == "openai":
    from llama_index.llms.openai_like import OpenAILike as Model
    from openai import NotFoundError

    options = {"api_base": url, "api_key": "k", "max_retries": 0, "is_chat_model": True}
    options |= {"is_function_calling_model": True, "should_use_structured_outputs": True}
else:
    import ollama
    from llama_index.llms.ollama import Ollama as Model
    from ollama import ResponseError as NotFoundError

    client = ollama.Client(host=url.removesuffix("/v1"), headers={"Authorization": "Bearer k"})
    options = {"client": client, "context_window": 4096, "is_function_calling_model": True}
llm = Model(model="fake-model", **options)
message = ChatMessage(role="user", content="Hello")
results = {"answer": llm.chat([message]).message.content}
results["stream"] = [piece.message.content for piece in llm.stream_chat([message])][-1]
called = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg="Weather?")
(call,) = llm.get_tool_calls_from_response(called)
results["call"] = [call.tool_name, call.tool_kwargs]
results["person"] = llm.as_structured_llm(Person).chat([message]).raw.model_dump()
try:
    Model(model="nobody", **options).chat([message])
except NotFoundError as error:
    results["error"] = "NotFoundError" if error.status_code == 404 else str(error)
print(json.dumps(results))
