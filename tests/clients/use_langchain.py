"""LangChain's class for the API that the first argument names, used as its documentation says. Prints JSON."""

import importlib
import json
import sys

from shared_schemas import Person, get_weather

api, url = sys.argv[1:]
name = {"openai": "ChatOpenAI", "anthropic": "ChatAnthropic", "ollama": "ChatOllama"}[api]
Chat = getattr(importlib.import_module(f"langchain_{api}"), name)
client = importlib.import_module(api)
NotFoundError = client.ResponseError if api == "ollama" else client.NotFoundError
options = {"base_url": url if api == "openai" else url.removesuffix("/v1"), "api_key": "k", "max_retries": 0}
if api == "ollama":
    headers = {"headers": {"Authorization": "Bearer k"}}
    options = {"base_url": options["base_url"], "client_kwargs": headers, "validate_model_on_init": False}
chat = Chat(model="fake-model", **options)
results = {"answer": chat.invoke("Hello").text}
results["stream"] = "".join(chunk.text for chunk in chat.stream("Hello"))
(call,) = chat.bind_tools([get_weather]).invoke("Weather?").tool_calls
results["call"] = [call["name"], call["args"]]
results["person"] = chat.with_structured_output(Person).invoke("Who?").model_dump()
if api == "anthropic":
    results["native"] = chat.with_structured_output(Person, method="json_schema").invoke("Who?").model_dump()
try:
    Chat(model="nobody", **options).invoke("Hello")
except NotFoundError as error:
    results["error"] = "NotFoundError" if error.status_code == 404 else str(error)
print(json.dumps(results))
