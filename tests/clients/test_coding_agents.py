"""Claude Code and Codex, unmodified and headless, on a gateway that calls their tools, and on a real server.

``make clients`` installs them from npm.
"""

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import torch

from openai_gateway.settings import Settings
from tests.clients.installed import NODE_MODULES, Package
from tests.support.fake_triton import TOKEN_BYTES, FakeTriton, Received, Script
from tests.support.gateways import running_gateway
from tests.support.http_host import QuietHandler, Request, serving
from tests.support.images import make_image
from tests.support.servers import running_triton
from tests.support.tiny_models import WHOLE_VOCABULARY, make_tiny_llama


@dataclass(frozen=True)
class Exchange(Request):
    """A request as the client sent it, and the status it received."""

    status: int


@dataclass
class Recorder:
    """Where clients are pointed at, and what passed."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def recording(target: str) -> Iterator[Recorder]:
    """Forward to the server at ``target``, a URL without a path; responses are streamed."""

    class Handler(QuietHandler):
        def forward(self) -> None:
            body = self.read_body()
            sent = {name.lower(): value for name, value in self.headers.items()}
            upstream = http.client.HTTPConnection(urlsplit(target).netloc, timeout=120)
            upstream.request(self.command, self.path, body, sent | {"connection": "close"})
            response = upstream.getresponse()
            recorder.exchanges.append(Exchange(self.command, self.path, sent, body, response.status))
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in {"connection", "transfer-encoding"}:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while piece := response.read1():
                self.wfile.write(piece)
                self.wfile.flush()
            upstream.close()

        do_GET = do_HEAD = do_POST = do_DELETE = forward

    with serving(Handler) as url:
        recorder = Recorder(url)
        yield recorder


def make_reciting(directory: Path, text: str, **overrides: Any) -> Path:
    """Make a checkpoint that responds with ``text``, whose tokens must differ, and ends.

    Attention and MLP run, but add nothing to the residual stream: the next token follows from the last one alone.
    Prompts of the default model's chat template end with a newline, which begins the text.
    """
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    make_tiny_llama(directory, tie_word_embeddings=False, **{"vocab_size": WHOLE_VOCABULARY} | overrides)
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    chain = [newline, *tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    assert len(set(chain)) == len(chain), chain
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.zero_()
    rows = weights["model.embed_tokens.weight"][torch.tensor(chain[:-1])]
    states = rows * rows.pow(2).mean(-1, keepdim=True).rsqrt() * weights["model.norm.weight"]
    head = weights["lm_head.weight"].zero_()
    head[torch.tensor(chain[1:])] = 8 * states  # logits of some hundreds against those near zero
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


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
    body = re.search(r"(?:Greet in|Look at) (/[\w./-]+)", conversation)
    if body is None or '"role":"tool"' in conversation or "tools" not in received.inputs:  # for a title
        return Script()
    tools = {tool["function"]["name"] for tool in json.loads(received.inputs["tools"])}
    reads = "Look at" in body[0]
    if reads:
        name, key = ("Read", "file_path") if "Read" in tools else ("view_image", "path")
        call: dict[str, Any] = {"name": name, "arguments": {key: body[1]}}
    elif "Write" in tools:
        call = {"name": "Write", "arguments": {"file_path": body[1], "content": CONTENT}}
    else:
        call = {"name": "exec_command", "arguments": {"cmd": f"printf 'Hello, world\\n' > {body[1]}"}}
    text = f"I write it.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return Script(texts=[text[i : i + 9] for i in range(0, len(text), 9)])


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeTriton]:
    with FakeTriton("fake-model", script) as fake:  # type: ignore[arg-type]
        yield fake


@pytest.fixture(scope="module")
def scripted(fake: FakeTriton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway whose model reads text only, and writes or reads a file when asked to."""
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
    settings = {
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
        env=settings | env,
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
    output: dict[str, Any] = json.loads(run(folder, "claude", "-p", "--output-format", "json", *arguments, **env))
    return output


def codex(folder: Path, url: str, model: str, *arguments: str) -> list[dict[str, Any]]:
    """Run Codex with the configuration of docs/guides/clients.md; return its events."""
    home = folder / "codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CONFIG.replace("MODEL", model).replace("URL", url))
    options = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    output = run(folder, "codex", *options, *arguments, CODEX_HOME=str(home), LOCAL_KEY="k")
    return [json.loads(line) for line in output.splitlines()]


def texts(events: list[dict[str, Any]]) -> list[str]:
    """Return the model's messages among the events of Codex."""
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def rejected(recorder: Recorder) -> list[tuple[str, str, int]]:
    """Return the requests that had no success."""
    return [
        (exchange.method, exchange.path, exchange.status) for exchange in recorder.exchanges if exchange.status >= 400
    ]


@CLAUDE_CODE.mark
def test_claude_code_writes_a_file_and_goes_on(recorder: Recorder, tmp_path: Path) -> None:
    file = tmp_path / "project" / "greeting.txt"
    arguments = ("--permission-mode", "acceptEdits", f"Greet in {file} please")
    result = claude(tmp_path, recorder.url, "fake-model", *arguments)
    assert (result["is_error"], result["num_turns"], result["result"]) == (False, 2, REPLY)
    assert file.read_text() == CONTENT
    result = claude(tmp_path, recorder.url, "fake-model", "--continue", "Where is it?")
    assert (result["is_error"], result["result"]) == (False, REPLY)
    assert rejected(recorder) == []
    assert f"Greet in {file}".encode() in recorder.exchanges[-1].body


@CODEX.mark
def test_codex_runs_a_command_and_goes_on(recorder: Recorder, tmp_path: Path) -> None:
    file = tmp_path / "project" / "greeting.txt"
    events = codex(tmp_path, recorder.url, "fake-model", f"Greet in {file} please")
    assert texts(events) == ["I write it.", REPLY]
    assert file.read_text() == CONTENT
    assert texts(codex(tmp_path, recorder.url, "fake-model", "resume", "--last", "Where is it?")) == [REPLY]
    assert rejected(recorder) == []
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
    assert rejected(recorder) == []


@CLAUDE_CODE.mark
def test_claude_code_fits_a_context_and_is_counted(served: str, tmp_path: Path) -> None:
    """With all its tools, and a prompt that is as long as ``count_tokens`` says."""
    with recording(served) as recorder:
        result = claude(tmp_path, recorder.url, "reciting", "What is the capital of France?")
    assert (result["is_error"], result["result"]) == (False, REPLY)
    bodies = [json.loads(exchange.body) for exchange in recorder.exchanges if exchange.path.startswith("/v1/messages?")]
    (request,) = [body for body in bodies if len(body.get("tools", ())) > 15]  # the other is for a title
    counted = {name: value for name, value in request.items() if name not in {"max_tokens", "metadata", "stream"}}
    counted = httpx.post(f"{served}/v1/messages/count_tokens", json=counted, trust_env=False).json()
    usage = result["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"] < CONTEXT


@CODEX.mark
def test_codex_takes_this_server_for_ollama(served: str, tmp_path: Path) -> None:
    """As its option ``--oss`` has it, without a configuration: it checks the version and the models first."""
    options = ("exec", "--json", "--skip-git-repo-check", "--oss", "--local-provider", "ollama", "-m", "reciting")
    output = run(tmp_path, "codex", *options, "What is the capital of France?", CODEX_OSS_BASE_URL=f"{served}/v1")
    assert texts([json.loads(line) for line in output.splitlines()]) == [REPLY]


@CODEX.mark
def test_codex_fits_a_context(served: str, tmp_path: Path) -> None:
    events = codex(tmp_path, served, "reciting", "What is the capital of France?")
    assert texts(events) == [REPLY]
    (usage,) = [event["usage"] for event in events if event["type"] == "turn.completed"]
    assert 1000 < usage["input_tokens"] < CONTEXT * 3 // 4
