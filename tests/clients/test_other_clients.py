"""Clients that cannot share our environment, unmodified, each in a process of its own environment.

``make clients`` installs them under the cache root: a virtual environment with ``requirements/clients.txt``, one each
with ``requirements/aider.txt`` and ``requirements/guidellm.txt``, and packages of npm. What is not there is skipped by
name. Coding agents: ``test_coding_agents.py``.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.paths import DEFAULT_MODEL_NAME, default_model_dir
from openai_gateway.settings import Settings
from tests.clients.installed import NODE_MODULES, Package
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.gateways import running_gateway

GUIDELLM, INSTRUCTOR = Package("guidellm", "guidellm"), Package("instructor")
HERE = Path(__file__).resolve().parent
REPLY = "The capital of France is Paris."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Boston"}}\n</tool_call>'
PERSON = {"name": "Ann", "age": 30}
FILE = "I write it.\n\ngreeting.py\n```\nprint('Hello, world')\n```\n"  # as aider wants a whole file


def script(received: Received) -> Script:
    """Respond as a model would that does what it is asked for."""
    conversation = json.loads(received.inputs["messages"])
    messages = conversation if isinstance(conversation, list) else conversation["messages"]
    if "greeting.py" in received.inputs["messages"]:
        return Script(texts=[FILE[i : i + 9] for i in range(0, len(FILE), 9)])
    if "response_format" in received.inputs:
        kind = json.loads(received.inputs["response_format"])["type"]
        if kind == "structural_tag":  # of a forced call
            name = json.loads(received.inputs["tools"])[0]["function"]["name"]
            return Script(texts=[f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(PERSON)}}}\n</tool_call>'])
        return Script(texts=["Yes" if kind == "regex_schema" else json.dumps(PERSON)])
    if "tools" in received.inputs and messages[-1]["role"] == "user":  # no result is there yet
        return Script(texts=[CALL[i : i + 9] for i in range(0, len(CALL), 9)])
    return Script()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with (
        FakeTriton("fake-model", script) as fake,
        running_gateway(Settings(triton_address=fake.address, api_keys=("k",))) as address,
    ):  # type: ignore[arg-type]
        yield f"{address}/v1"


def run(*command: str, url: str) -> Any:
    # Nothing but our address: a client that asks others fails.
    env = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=150, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Use:
    """A program that uses a package, its arguments, and what it prints."""

    package: Package
    prints: dict[str, Any]
    arguments: tuple[str, ...] = ()

    def command(self, program: str) -> list[str]:
        """Return how it is started."""
        name = program.partition(" ")[0]
        if self.package.environment != "node":
            return [self.package.python, str(HERE / f"use_{name}.py"), *self.arguments]
        return [str(shutil.which("node")), str(HERE / f"use_{name}.cjs"), str(NODE_MODULES), *self.arguments]


SAID = {"answer": REPLY, "stream": REPLY}
CALLED = {"call": ["get_weather", {"location": "Boston"}], "error": "NotFoundError"}
ALL = SAID | CALLED | {"person": PERSON}
AGENT = {"answer": REPLY, "agent": [REPLY, ["Boston"]], "person": PERSON}
# Four turns, each with a call and what it returned.
TURNS = SAID | {"person": PERSON, "turns": [[2, REPLY]] * 4, "asked": ["Boston"] * 4}
USES = {
    "litellm openai": Use(Package("litellm"), ALL, ("openai",)),
    "litellm anthropic": Use(Package("litellm"), ALL, ("anthropic",)),
    "litellm ollama": Use(Package("litellm"), SAID | {"person": PERSON, "error": "NotFoundError"}, ("ollama",)),
    "litellm ollama_chat": Use(Package("litellm"), ALL, ("ollama_chat",)),
    "langchain openai": Use(Package("langchain-openai"), ALL, ("openai",)),
    "langchain anthropic": Use(Package("langchain-anthropic"), ALL | {"native": PERSON}, ("anthropic",)),
    "langchain ollama": Use(Package("langchain-ollama"), ALL, ("ollama",)),
    "llama_index openai": Use(Package("llama-index-llms-openai-like"), ALL, ("openai",)),
    "llama_index ollama": Use(Package("llama-index-llms-ollama"), ALL, ("ollama",)),
    "openai_agents": Use(
        Package("openai-agents"),
        {name: [["Boston"], REPLY, PERSON] for name in ("OpenAIChatCompletionsModel", "OpenAIResponsesModel")},
    ),
    "pydantic_ai": Use(
        Package("pydantic-ai-slim"),
        {"chat": AGENT | {"native": PERSON}, "responses": AGENT | {"native": PERSON}, "messages": AGENT},
    ),
    "outlines": Use(Package("outlines"), SAID | {"openai": PERSON, "vllm": PERSON, "choice": "Yes"}),
    "ollama": Use(Package("ollama"), ALL | {"loaded": "load", "models": ["fake-model"]}),
    "llm": Use(Package("llm"), SAID | {"tools": [REPLY, True], "person": PERSON, "continued": REPLY}),
    "aider": Use(Package("aider-chat", "aider"), {"file": "print('Hello, world')\n", "applied": True}),
    "openai": Use(Package("openai", "node"), ALL | {"response": REPLY, "models": ["fake-model"]}),
    "ollama npm": Use(Package("ollama", "node"), ALL | {"models": ["fake-model"]}),
    "vercel_ai": Use(Package("ai", "node"), {"chat": TURNS, "responses": TURNS}),
}


@pytest.mark.parametrize("program", [pytest.param(name, marks=use.package.mark) for name, use in USES.items()])
def test_a_client_works_unmodified(url: str, program: str) -> None:
    assert run(*USES[program].command(program), url=url) == USES[program].prints


@GUIDELLM.mark
def test_a_measuring_client_counts_what_came(url: str) -> None:
    result = run(GUIDELLM.python, str(HERE / "use_guidellm.py"), str(default_model_dir()), url=url)
    tokens = result.pop("output_tokens")
    assert result == {"answered": 4, "failed": 0, "outputs": [REPLY]}
    assert len(tokens) == 4
    assert min(tokens) > 0


@INSTRUCTOR.mark
def test_instructor_gets_objects_in_every_mode_that_a_grammar_can_hold_to(gateway: str) -> None:
    """With the real model, whose wit would not do: what holds it to the schema is the server."""
    result = run(INSTRUCTOR.python, str(HERE / "use_instructor.py"), DEFAULT_MODEL_NAME, url=f"{gateway}/v1")
    modes = ("tool_call", "tools_strict", "json_schema_mode", "responses_tools", "anthropic_tools")
    assert result == {mode: ["name", "age"] for mode in modes}
