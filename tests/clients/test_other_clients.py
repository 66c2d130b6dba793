"""Clients that cannot share our environment, unmodified, each in a process of its own environment.

``make clients`` installs them under the cache root: a virtual environment with ``requirements/clients.txt``, one each
with ``requirements/aider.txt`` and ``requirements/guidellm.txt``, and the npm package ``openai``. What is not there is
skipped by name.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.paths import cache_root, default_model_dir
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.gateways import running_gateway

HERE = Path(__file__).resolve().parent
PYTHON = cache_root() / "clients" / "bin" / "python"
AIDER = cache_root() / "clients" / "aider" / "bin" / "python"
GUIDELLM = cache_root() / "clients" / "guidellm" / "bin" / "python"
NODE_MODULES = cache_root() / "clients" / "node" / "node_modules"
ANSWER = "The capital of France is Paris."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Boston"}}\n</tool_call>'
PERSON = '{"name": "Ann", "age": 30}'


FILE = "I write it.\n\ngreeting.py\n```\nprint('Hello, world')\n```\n"  # as aider wants a whole file


def script(received: Received) -> Script:
    if "greeting.py" in received.inputs["messages"]:
        return Script(texts=[FILE[i : i + 9] for i in range(0, len(FILE), 9)])
    if "tools" in received.inputs and '"tool_call_id"' not in received.inputs["messages"]:  # no result is there yet
        return Script(texts=[CALL[i : i + 9] for i in range(0, len(CALL), 9)])
    return Script(texts=[PERSON]) if "response_format" in received.inputs else Script()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    fake = FakeTriton("fake-model", script)  # type: ignore[arg-type]
    with running_gateway(Settings(triton_address=fake.address, api_keys=("k",))) as address:
        yield f"{address}/v1"
    fake.stop()


def run(*command: str, url: str) -> Any:
    done = subprocess.run([*command, url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


EXPECTED = {
    "answer": ANSWER,
    "stream": ANSWER,
    "call": ["get_weather", {"location": "Boston"}],
    "error": "NotFoundError",
}


@pytest.mark.parametrize("client", ["litellm", "langchain_openai", "llama_index"])
def test_python_clients(url: str, client: str) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{client} is not installed; run: make clients")
    said = run(str(PYTHON), str(HERE / f"use_{client}.py"), url=url)
    assert said == EXPECTED | {"person": {"name": "Ann", "age": 30}}


FURTHER = {
    "instructor": {"json_schema_mode": {"name": "Ann", "age": 30}, "json_mode": {"name": "Ann", "age": 30}},
    "openai_agents": {
        "OpenAIChatCompletionsModel": [["Boston"], ANSWER],
        "OpenAIResponsesModel": [["Boston"], ANSWER],
    },
    "llm": {
        "answer": ANSWER,
        "stream": ANSWER,
        "tools": [ANSWER, True],
        "person": {"name": "Ann", "age": 30},
        "continued": ANSWER,
    },
}


@pytest.mark.parametrize("client", FURTHER)
def test_clients_of_structured_answers_and_agents(url: str, client: str) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{client} is not installed; run: make clients")
    assert run(str(PYTHON), str(HERE / f"use_{client}.py"), url=url) == FURTHER[client]


def test_a_coding_agent_edits_a_file(url: str) -> None:
    if not AIDER.exists():
        pytest.skip("aider is not installed; run: make clients")
    said = run(str(AIDER), str(HERE / "use_aider.py"), url=url)
    assert said == {"file": "print('Hello, world')\n", "applied": True}


def test_a_measuring_client_counts_what_came(url: str) -> None:
    if not GUIDELLM.exists():
        pytest.skip("guidellm is not installed; run: make clients")
    said = run(str(GUIDELLM), str(HERE / "use_guidellm.py"), str(default_model_dir()), url=url)
    tokens = said.pop("output_tokens")
    assert said == {"answered": 4, "failed": 0, "outputs": [ANSWER]}
    assert len(tokens) == 4
    assert min(tokens) > 0


def test_the_node_client(url: str) -> None:
    node = shutil.which("node")
    if node is None or not NODE_MODULES.exists():
        pytest.skip("the npm package openai is not installed; run: make clients")
    said = run(node, str(HERE / "use_openai.cjs"), str(NODE_MODULES), url=url)
    assert said == EXPECTED | {"person": {"name": "Ann", "age": 30}, "response": ANSWER, "models": ["fake-model"]}
