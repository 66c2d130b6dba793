"""Two calls and their results through three clients, the default model held to each format by its grammar.

What differs between formats is what tests/unit/test_call_grammars.py and tests/gateway/responses go through.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import jsonschema
import ollama
import pytest

from lmdeploy.paths import DEFAULT_MODEL_NAME as MODEL
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.templates.tool_call_formats import TOOL_CALL_FORMATS
from lmdeploy.turbomind.engine_dir import resolve
from openai_gateway.settings import Settings
from tests.support.gateways import openai_client, running_gateway

Made = list[tuple[str, dict[str, Any]]]
Turn = Callable[[list[dict[str, Any]]], tuple[Made, dict[str, Any]]]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}, "exact": {"type": "boolean"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAMES = ("get_weather", "get_forecast")
FUNCTIONS: Any = [{"name": name, "description": "The weather.", "parameters": PARAMETERS} for name in NAMES]
TOOLS: Any = [{"type": "function", "function": function} for function in FUNCTIONS]
QUESTION = "How is the weather in Rome for 2 days?"
TOKENS = 512
# Of names for one format the first.
FORMATS = {named.formats[0]: name for name, named in reversed(TOOL_CALL_FORMATS.items())}.values()


@pytest.fixture(params=sorted(FORMATS))
def url(request: pytest.FixtureRequest, triton_server: TritonServer) -> Iterator[str]:
    settings = Settings(
        triton_address=triton_server.grpc_address, engine_dir=resolve("").path, tool_call_parser=request.param
    )
    with running_gateway(settings) as address:
        yield address


def require_fitting(made: Made) -> None:
    assert made
    for name, arguments in made:
        assert name in NAMES
        jsonschema.validate(arguments, PARAMETERS)


@pytest.mark.alike(max_cases=1)
def test_openais_client(url: str) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    options: Any = {"model": MODEL, "tools": TOOLS, "temperature": 0, "max_tokens": TOKENS}
    with openai_client(url) as client:
        whole = client.chat.completions.create(
            messages=messages, tool_choice="required", parallel_tool_calls=False, **options
        ).choices[0]
        named: Any = {"type": "function", "function": {"name": NAMES[1]}}
        for message in (whole.message, None):
            if message is None:
                with client.chat.completions.stream(messages=messages, tool_choice=named, **options) as stream:
                    streamed = stream.get_final_completion().choices[0]
                message, reason = streamed.message, streamed.finish_reason
            else:
                reason = whole.finish_reason
            calls: Any = message.tool_calls
            require_fitting([(call.function.name, json.loads(call.function.arguments)) for call in calls])
            assert (len(calls), reason, message.content or "") == (1, "tool_calls", "")
            messages += [message, {"role": "tool", "tool_call_id": calls[0].id, "content": "12 degrees"}]
        last = client.chat.completions.create(messages=messages, **options | {"max_tokens": 8}).choices[0]
    assert calls[0].function.name == NAMES[1]
    assert last.finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.alike(max_cases=1)
def test_anthropics_client(url: str) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"name": function["name"], "input_schema": PARAMETERS} for function in FUNCTIONS]
    options: Any = {"model": MODEL, "tools": tools, "max_tokens": TOKENS, "extra_body": {"temperature": 0}}
    choices: Any = ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": NAMES[1]})
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        for choice in choices:
            with client.messages.stream(messages=messages, tool_choice=choice, **options) as stream:
                message = stream.get_final_message()
            (block,) = message.content
            assert (message.stop_reason, block.type) == ("tool_use", "tool_use")
            made: Any = block
            require_fitting([(made.name, made.input)])
            result = {"type": "tool_result", "tool_use_id": made.id, "content": "12 degrees"}
            messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        last = client.messages.create(messages=messages, **options | {"max_tokens": 8})
    assert made.name == NAMES[1]
    assert last.usage.output_tokens > 0


@pytest.mark.alike(max_cases=1)
def test_ollamas_client(url: str) -> None:
    client = ollama.Client(url, trust_env=False)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for choice in ("required", {"type": "function", "function": {"name": NAMES[1]}}):
        # Not an option of Ollama's: it has none that makes a model call.
        options = {"temperature": 0.0, "num_predict": TOKENS, "tool_choice": choice}
        message = client.chat(MODEL, messages, tools=TOOLS, options=options).message
        calls = [(call.function.name, dict(call.function.arguments)) for call in message.tool_calls or ()]
        require_fitting(calls)
        messages += [message, *({"role": "tool", "tool_name": name, "content": "12 degrees"} for name, _ in calls)]
    assert calls[0][0] == NAMES[1]
    last = client.chat(MODEL, messages, tools=TOOLS, options={"temperature": 0.0, "num_predict": 8})
    assert last.done
