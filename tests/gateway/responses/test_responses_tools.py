"""Tools of ``/v1/responses`` that are no functions, and functions in a group, as Codex and others offer them."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script


def function(name: str) -> Any:
    return {"type": "function", "name": name, "strict": False, "parameters": {"type": "object", "properties": {}}}


LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
OFFERED: Any = [
    function("exec_command"),
    {"type": "namespace", "name": "agents", "description": "d", "tools": [function("spawn"), function("wait")]},
    {
        "type": "namespace",
        "name": "clock",
        "description": "d",
        "tools": [function("wait"), {"type": "custom", "name": "c"}],
    },
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
    {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": LARK},
    {"type": "mcp", "server_label": "docs", "server_url": "http://localhost", "require_approval": "never"},
]
LEFT_OUT = ["web_search", "local_shell", "mcp: docs"]


def call(name: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'


def offered(triton: FakeTriton) -> list[str]:
    return [tool["function"]["name"] for tool in json.loads(triton.requests[-1].inputs["tools"])]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_client_does_not_run_is_left_out_and_the_response_says_so(
    client: openai.OpenAI, triton: FakeTriton, stream: bool
) -> None:
    request: Any = {"model": MODEL, "input": "Hello", "tools": OFFERED}
    if stream:
        response: Any = list(client.responses.create(**request, stream=True))[-1]
        response = response.response
    else:
        response = client.responses.create(**request)
    assert response.unsupported_tools == LEFT_OUT
    assert [tool.type for tool in response.tools] == ["function", "namespace", "namespace", "custom"]
    # a function has its own name where no other has it
    assert offered(triton) == ["exec_command", "spawn", "agents__wait", "clock__wait", "c", "apply_patch"]
    reference: Any = client.responses.create(model=MODEL, input="Hello", tools=OFFERED[:1])
    assert not hasattr(reference, "unsupported_tools")


@pytest.mark.parametrize(
    ("shown", "name", "namespace"),
    [("exec_command", "exec_command", None), ("spawn", "spawn", "agents"), ("clock__wait", "wait", "clock")],
)
def test_a_call_names_the_function_and_its_group(
    client: openai.OpenAI, triton: FakeTriton, shown: str, name: str, namespace: str | None
) -> None:
    triton.script = Script(texts=[call(shown)])
    made: Any = client.responses.create(model=MODEL, input="Hello", tools=OFFERED).output[0]
    assert (made.type, made.name, getattr(made, "namespace", None)) == ("function_call", name, namespace)
    returned = {"type": "function_call_output", "call_id": made.call_id, "output": "ok"}
    again: Any = [{"role": "user", "content": "Hello"}, made.model_dump(exclude_none=True), returned]
    client.responses.create(model=MODEL, input=again, tools=OFFERED)
    prompt = json.loads(triton.requests[-1].inputs["messages"])
    assert prompt[1]["tool_calls"][0]["function"]["name"] == shown


PATCH = '*** Begin Patch\n+"ü"\n*** End Patch'


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("apply_patch", {"input": PATCH}, PATCH),
        ("apply_patch", {"patch": PATCH}, PATCH),  # models misname the only parameter
        ("c", {"input": ""}, ""),
    ],
)
def test_a_freeform_tool_is_called_with_a_text(
    client: openai.OpenAI, triton: FakeTriton, name: str, arguments: dict[str, str], text: str
) -> None:
    written = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    triton.script = Script(texts=[written[i : i + 5] for i in range(0, len(written), 5)])
    with client.responses.stream(model=MODEL, input="Hello", tools=OFFERED) as stream:
        events: list[Any] = list(stream)
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    (made,) = events[-1].response.output
    assert (made.type, made.name, made.input, done.input) == ("custom_tool_call", name, text, text)
    assert made.namespace == ("clock" if name == "c" else None)
    returned: Any = {"type": "custom_tool_call_output", "call_id": made.call_id, "output": "Done"}
    client.responses.create(model=MODEL, input=[returned], previous_response_id=events[-1].response.id, tools=OFFERED)
    _, called, result = json.loads(triton.requests[-1].inputs["messages"])
    function = called["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == (name, {"input": text})
    assert (result["role"], result["content"]) == ("tool", "Done")


@pytest.mark.parametrize(
    ("form", "pattern", "words"),
    [
        (None, None, ""),
        ({"type": "text"}, None, ""),
        (LARK, None, LARK["definition"]),
        ({"type": "grammar", "syntax": "regex", "definition": "[a-z]+|no"}, "^(?:[a-z]+|no)$", "[a-z]+|no"),
        ({"type": "grammar", "syntax": "regex", "definition": r"(a)\1"}, None, r"(a)\1"),  # no grammar holds it
    ],
)
def test_a_freeform_tool_is_shown_as_a_function_of_one_text(
    client: openai.OpenAI, triton: FakeTriton, form: Any, pattern: str | None, words: str
) -> None:
    tool: Any = {"type": "custom", "name": "c", "description": "Go.", "format": form}
    client.responses.create(model=MODEL, input="Hello", tools=[tool])
    (shown,) = json.loads(triton.requests[-1].inputs["tools"])
    assert shown["function"]["description"].startswith("Go.")
    assert words in shown["function"]["description"]
    schema = {"type": "string"} | ({"pattern": pattern} if pattern else {})
    assert shown["function"]["parameters"]["properties"] == {"input": schema}
    forced: Any = {"type": "custom", "name": "c"}
    triton.script = Script(texts=['{"name": "c", "arguments": {"input": "no"}}'])
    made: Any = client.responses.create(model=MODEL, input="Hello", tools=[tool], tool_choice=forced).output[0]
    assert (made.type, made.input) == ("custom_tool_call", "no")
    assert ('"pattern"' in triton.requests[-1].inputs["response_format"]) == (pattern is not None)


def test_a_choice_is_about_functions_in_groups_too(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=['{"name": "spawn", "arguments": {}}'])
    choice: Any = {"type": "function", "name": "spawn"}
    made: Any = client.responses.create(model=MODEL, input="Hello", tools=OFFERED, tool_choice=choice).output[0]
    assert (made.name, made.namespace) == ("spawn", "agents")
    allowed: Any = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "wait"}, {"type": "web_search"}],
    }
    client.responses.create(model=MODEL, input="Hello", tools=OFFERED, tool_choice=allowed)
    assert offered(triton) == ["agents__wait", "clock__wait"]


def test_records_of_tools_that_others_ran_are_left_out_of_the_conversation(
    client: openai.OpenAI, triton: FakeTriton
) -> None:
    items: Any = [
        {"role": "user", "content": "Hello"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I patch.", "annotations": []}],
        },
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
    ]
    client.responses.create(model=MODEL, input=items)
    prompt = json.loads(triton.requests[-1].inputs["messages"])
    assert [(message["role"], message["content"]) for message in prompt] == [
        ("user", "Hello"),
        ("assistant", "I patch."),
        ("tool", "Done"),
    ]
    function = prompt[1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("apply_patch", {"input": "*** Begin"})


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function", "name": "no spaces"}], "tools[0].name"),
        ([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
        ([{"type": "namespace", "tools": []}], "tools[0].name"),
        ([{"name": "f"}], "tools[0].type"),
        ([5], "tools[0]"),
    ],
)
def test_a_tool_that_is_none_is_refused_by_its_place(client: openai.OpenAI, tools: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as rejected:
        client.responses.create(model=MODEL, input="Hello", tools=tools)
    assert rejected.value.param == param


def test_what_codex_sends_is_taken_in_its_order(http: httpx.Client, triton: FakeTriton) -> None:
    """The fields, roles and items of a second turn of Codex 0.169, headless, with reasoning and two calls before."""

    def message(role: str, *texts: str) -> Any:
        parts = [{"type": "input_text", "text": text} for text in texts]
        return {"type": "message", "id": f"msg_{texts[0]}", "role": role, "content": parts}

    def called(number: str) -> Any:
        return {
            "type": "function_call",
            "status": "completed",
            "id": f"fc_{number}",
            "name": "exec_command",
            "arguments": f'{{"cmd": "echo {number}"}}',
            "call_id": f"call_{number}",
        }

    def returned(number: str) -> Any:
        output = f"Process exited with code 0\n{number}"
        return {"type": "function_call_output", "id": f"fco_{number}", "call_id": f"call_{number}", "output": output}

    begun = {"type": "output_text", "text": "I do.", "annotations": [], "logprobs": []}
    thought = [{"type": "reasoning_text", "text": "Hm, two."}]
    body: dict[str, Any] = {
        "model": MODEL,
        "input": [
            message("developer", "You are an agent."),
            message("developer", "Skills.", " Permissions."),
            message("user", "It is Monday."),
            message("user", "Echo."),
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": thought, "encrypted_content": None},
            {"type": "message", "status": "completed", "id": "msg_2", "role": "assistant", "content": [begun]},
            *(called("1"), called("2"), returned("1"), returned("2")),
        ],
        "tools": OFFERED,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "client_metadata": {"thread_id": "thread"},
    }
    response = http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    events = [line for line in response.text.splitlines() if line.startswith("event: ")]
    assert events[-1] == "event: response.completed"
    conversation = json.loads(triton.requests[-1].inputs["messages"])
    assert [(message["role"], message["content"]) for message in conversation] == [
        ("system", "You are an agent."),
        ("system", "Skills. Permissions."),
        ("user", "It is Monday."),
        ("user", "Echo."),
        ("assistant", "I do."),
        ("tool", "Process exited with code 0\n1"),
        ("tool", "Process exited with code 0\n2"),
    ]
    assert conversation[4]["reasoning_content"] == "Hm, two."
    assert [call["function"]["arguments"] for call in conversation[4]["tool_calls"]] == [
        '{"cmd": "echo 1"}',
        '{"cmd": "echo 2"}',
    ]
