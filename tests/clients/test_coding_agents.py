"""Claude Code and Codex, unmodified and headless, on a gateway that calls their tools, and on a real server.

``make clients`` installs them from npm.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_gateway.settings import Settings
from tests.clients.installed import NODE_MODULES, Package
from tests.support.fake_triton import TOKEN_BYTES, FakeTriton, Received, Script
from tests.support.gateways import running_gateway
from tests.support.images import make_image
from tests.support.reciting_model import make_reciting
from tests.support.recording import Recorder, recording
from tests.support.servers import running_triton

CLAUDE_CODE, CODEX = Package("@anthropic-ai/claude-code", "node"), Package("@openai/codex", "node")
REPLY = "The capital of France is Paris."
CONTENT = "Hello, world\n"
LEFT_OUT = "image left out"
CONTEXT = 32768  # tokens, of the real server
CONFIG = """
model = "MODEL"
model_provider = "local"
model_context_window = 32768
[model_providers.local]
name = "local"
base_url = "URL/v1"
wire_api = "responses"
env_key = "LOCAL_KEY"
"""


def script(received: Received) -> Script:
    """Write the file that the prompt names, with the tool that is there for it; then respond."""
    conversation = received.inputs["messages"]
    asked = re.search(r"(?:Greet in|Look at) (/[\w./-]+)", conversation)
    if asked is None or '"role":"tool"' in conversation or "tools" not in received.inputs:  # for a title
        return Script()
    tools = {tool["function"]["name"] for tool in json.loads(received.inputs["tools"])}
    reads = "Look at" in asked[0]
    if reads:
        name, key = ("Read", "file_path") if "Read" in tools else ("view_image", "path")
        call: dict[str, Any] = {"name": name, "arguments": {key: asked[1]}}
    elif "Write" in tools:
        call = {"name": "Write", "arguments": {"file_path": asked[1], "content": CONTENT}}
    else:
        call = {"name": "exec_command", "arguments": {"cmd": f"printf 'Hello, world\\n' > {asked[1]}"}}
    text = f"I write it.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return Script(texts=[text[i : i + 9] for i in range(0, len(text), 9)])


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeTriton]:
    fake = FakeTriton("fake-model", script)  # type: ignore[arg-type]
    yield fake
    fake.stop()


@pytest.fixture(scope="module")
def scripted(fake: FakeTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway whose model reads text only, and writes or reads a file when it is asked to."""
    engine_dir = tmp_path_factory.mktemp("engine")
    TOKEN_BYTES.write(engine_dir / "token_bytes.bin")
    with running_gateway(Settings(triton_address=fake.address, api_keys=("k",), engine_dir=engine_dir)) as url:
        yield url


@pytest.fixture
def recorder(scripted: str) -> Iterator[Recorder]:
    with recording(scripted) as recorder:
        yield recorder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real server with a context that a user would give an agent."""
    model = tmp_path_factory.mktemp("models") / "reciting"
    make_reciting(model, REPLY, max_position_embeddings=CONTEXT)
    with (
        running_triton(model, session_len=CONTEXT) as triton,
        running_gateway(Settings(triton_address=triton.grpc_address, model_name="reciting")) as url,
    ):
        yield url


def run(folder: Path, program: str, *arguments: str, **env: str) -> str:
    """Run a program of the packages in a folder, with nothing of this machine's configuration, and loopback alone."""
    nowhere = "http://127.0.0.1:9"
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "HTTPS_PROXY": nowhere,
        "HTTP_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
    }
    (folder / "project").mkdir(exist_ok=True)
    done = subprocess.run(
        [str(NODE_MODULES / ".bin" / program), *arguments],
        cwd=folder / "project",
        env=own | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def claude(folder: Path, url: str, model: str, *arguments: str) -> dict[str, Any]:
    """Run Claude Code with what docs/guides/clients.md names; return its report."""
    env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "k"}
    env |= {"ANTHROPIC_MODEL": model, "ANTHROPIC_SMALL_FAST_MODEL": model}
    said: dict[str, Any] = json.loads(run(folder, "claude", "-p", "--output-format", "json", *arguments, **env))
    return said


def codex(folder: Path, url: str, model: str, *arguments: str) -> list[dict[str, Any]]:
    """Run Codex with the configuration of docs/guides/clients.md; return its events."""
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CONFIG.replace("MODEL", model).replace("URL", url))
    options = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    said = run(folder, "codex", *options, *arguments, CODEX_HOME=str(home), LOCAL_KEY="k")
    return [json.loads(line) for line in said.splitlines()]


def texts(events: list[dict[str, Any]]) -> list[str]:
    """Return what the model said, of the events of Codex."""
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def refused(recorder: Recorder) -> list[tuple[str, str, int]]:
    """Return the requests that had no success."""
    return [(each.method, each.path, each.status) for each in recorder.exchanges if each.status >= 400]


@CLAUDE_CODE.mark
def test_claude_code_writes_a_file_and_goes_on(recorder: Recorder, tmp_path: Path) -> None:
    file = tmp_path / "project" / "greeting.txt"
    ask = ("--permission-mode", "acceptEdits", f"Greet in {file} please")
    said = claude(tmp_path, recorder.url, "fake-model", *ask)
    assert (said["is_error"], said["num_turns"], said["result"]) == (False, 2, REPLY)
    assert file.read_text() == CONTENT
    said = claude(tmp_path, recorder.url, "fake-model", "--continue", "Where is it?")
    assert (said["is_error"], said["result"]) == (False, REPLY)
    assert refused(recorder) == []
    assert f"Greet in {file}".encode() in recorder.exchanges[-1].body


@CODEX.mark
def test_codex_runs_a_command_and_goes_on(recorder: Recorder, tmp_path: Path) -> None:
    file = tmp_path / "project" / "greeting.txt"
    events = codex(tmp_path, recorder.url, "fake-model", f"Greet in {file} please")
    assert texts(events) == ["I write it.", REPLY]
    assert file.read_text() == CONTENT
    assert texts(codex(tmp_path, recorder.url, "fake-model", "resume", "--last", "Where is it?")) == [REPLY]
    assert refused(recorder) == []
    assert f"Greet in {file}".encode() in recorder.exchanges[-1].body


@pytest.mark.parametrize("agent", [pytest.param(claude, marks=CLAUDE_CODE.mark), pytest.param(codex, marks=CODEX.mark)])
def test_a_picture_that_a_text_model_is_shown_ends_no_session(
    recorder: Recorder, fake: FakeTriton, tmp_path: Path, agent: Any
) -> None:
    (tmp_path / "project").mkdir()
    file = tmp_path / "project" / "x.png"
    make_image(8, 8).save(file)
    agent(tmp_path, recorder.url, "fake-model", f"Look at {file} please")
    assert LEFT_OUT in fake.requests[-1].inputs["messages"]
    again = ("--continue",) if agent is claude else ("resume", "--last")
    agent(tmp_path, recorder.url, "fake-model", *again, "What is it?")
    assert LEFT_OUT in fake.requests[-1].inputs["messages"]
    assert refused(recorder) == []


@pytest.mark.slow
@CLAUDE_CODE.mark
def test_claude_code_fits_a_context_and_is_counted(served: str, tmp_path: Path) -> None:
    """With all its tools, and a prompt that is as long as ``count_tokens`` says."""
    with recording(served) as recorder:
        said = claude(tmp_path, recorder.url, "reciting", "What is the capital of France?")
    assert (said["is_error"], said["result"]) == (False, REPLY)
    bodies = [json.loads(each.body) for each in recorder.exchanges if each.path.startswith("/v1/messages?")]
    (asked,) = [body for body in bodies if len(body.get("tools", ())) > 15]  # the other is for a title
    counted = {name: value for name, value in asked.items() if name not in {"max_tokens", "metadata", "stream"}}
    counted = httpx.post(f"{served}/v1/messages/count_tokens", json=counted, trust_env=False).json()
    usage = said["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"] < CONTEXT


@pytest.mark.slow
@CODEX.mark
def test_codex_takes_this_server_for_ollama(served: str, tmp_path: Path) -> None:
    """As its option ``--oss`` has it, without a configuration: it checks the version and the models first."""
    options = ("exec", "--json", "--skip-git-repo-check", "--oss", "--local-provider", "ollama", "-m", "reciting")
    said = run(tmp_path, "codex", *options, "What is the capital of France?", CODEX_OSS_BASE_URL=f"{served}/v1")
    assert texts([json.loads(line) for line in said.splitlines()]) == [REPLY]


@pytest.mark.slow
@CODEX.mark
def test_codex_fits_a_context(served: str, tmp_path: Path) -> None:
    events = codex(tmp_path, served, "reciting", "What is the capital of France?")
    assert texts(events) == [REPLY]
    (usage,) = [event["usage"] for event in events if event["type"] == "turn.completed"]
    assert 1000 < usage["input_tokens"] < CONTEXT * 3 // 4
