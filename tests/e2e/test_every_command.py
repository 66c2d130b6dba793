"""Every serving command as a user types it, and the line that ``lmdeploy convert`` prints."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from lmdeploy.cli.main import make_parser
from lmdeploy.serve.ports import DEFAULT_TRITON_HOST, Ports, free_ports
from lmdeploy.turbomind.engine_dir import resolve
from tests.docs.blocks import SAMPLE, steps
from tests.support.commands import ApiServer, api_server
from tests.support.fake_hub import running_hub
from tests.support.processes import session_members
from tests.support.servers import START, answers
from tests.support.tiny_models import make_tiny_llama
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).resolve().parents[2]
CHAT = "Hello\nexit\n"  # what a user types: a message, and that it is over


@dataclass(frozen=True)
class Line:
    """The smallest line of a command.

    ``words``: what follows the command. ``{port}`` is a free one; the others are of the test's own server and folder.
    ``typed``: what is typed. ``serves``: a path that it then answers with 200; None: it finishes by itself. ``status``:
    with which it finishes. ``prints``: something that it prints.
    """

    words: str = ""
    typed: str = ""
    serves: str | None = None
    status: int = 0
    prints: str = ""


LITE = "{model} --work-dir {folder}/made --calib-samples 2 --calib-seqlen 64"
LINES = {
    "": Line(prints="usage: lmdeploy"),
    "chat": Line("{model}", typed=CHAT),
    "check_env": Line(prints="lmdeploy"),
    "serve": Line(prints="usage: lmdeploy serve"),
    "serve gateway": Line("--triton-address {triton} --server-port {port}", serves="/health"),
    "serve gradio": Line("{triton} --server-port {port}", serves="/"),
    "serve proxy": Line("--server-port {port}", serves="/nodes/status"),
    "serve ray": Line("{model} --server-port {port} --threads 1 --cache-max-entry-count 64", serves="/health"),
    "serve triton_client": Line("{triton}", typed=CHAT),
    "batch": Line("{folder}/in.jsonl {model} -o {folder}/out.jsonl"),
    "convert": Line("{model} --dst-path {folder}/workspace", prints="tritonserver"),
    "lite": Line(prints="usage: lmdeploy lite"),
    "lite auto_awq": Line(f"{LITE} --w-group-size 32"),
    "lite auto_gptq": Line(f"{LITE} --w-group-size 32"),
    "lite smooth_quant": Line(LITE),
    "lite calibrate": Line(LITE),
    "lite kv_qparams": Line("{folder} {folder}"),
    "lite get_small_sharded_hf": Line("a b", status=2, prints="is not supported"),
    "new-family": Line("{model}", prints="Read by none"),
    "list": Line(prints="LlamaForCausalLM"),
    "pull": Line("owner/tiny", prints="success"),  # of a hub of the test's
    "rm": Line("owner/tiny", status=1, prints="was not pulled"),
    "ps": Line("{url}", prints="STATE"),
    "stop": Line("nobody {url}", status=1, prints="`nobody` does not exist"),
    "warm": Line("{folder}/prompts.jsonl {model} --cache-dir {folder}/kept", prints="/kept: 1"),
}

# Those of lite read a model and calibrate it as auto_awq does; a test below converts, test_ray.py runs replicas, and
# tests/serve/test_cli.py starts and stops the others that serve.
ALIKE = ("lite auto_gptq", "lite calibrate", "lite smooth_quant", "convert", "serve ray")
ALIKE += ("serve gateway", "serve gradio", "serve proxy")


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    """Yield all commands of a parser: itself, and those below."""
    yield name
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from commands(below, f"{name} {word}".strip())


COMMANDS = list(commands(make_parser()))
WRITTEN = [step.text for page in SAMPLE for step in steps(page) if step.language == "bash" and not step.not_run]
ON_PAGES = {name for name in COMMANDS if name and any(f"{text} ".startswith(f"lmdeploy {name} ") for text in WRITTEN)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, default_model_dir: Path) -> Path:
    made = make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=512)
    resolve(made)  # here, where transformers is loaded
    return made


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ApiServer]:
    with api_server(str(model)) as server:
        server.wait_ready()
        yield server
        assert server.end(signal.SIGINT) == 130


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    with running_hub({"owner/tiny": {"config.json": b"{}", "model.safetensors": b"1234"}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield


@contextmanager
def started(words: list[str], typed: str, output: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program as a shell does; what it and its children print goes to a file."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with output.open("w", encoding="utf-8") as printed:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=printed, stderr=printed, text=True,
            start_new_session=True,
        )  # fmt: skip
    try:
        process.stdin.write(typed)
        process.stdin.close()
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def expect_served(url: str, process: subprocess.Popen[str], output: Path) -> None:
    """Wait until a path is answered with 200, then end the process as Ctrl-C does."""

    def is_answered() -> bool:
        assert process.poll() is None, output.read_text(encoding="utf-8")[-3000:]
        return answers(url)

    eventually_sync(is_answered, timeout=START)
    process.send_signal(signal.SIGINT)
    assert process.wait(180) == 130, output.read_text(encoding="utf-8")[-3000:]


def test_every_command_is_run_by_a_page_or_has_its_smallest_line_here() -> None:
    assert LINES.keys() == set(COMMANDS) - ON_PAGES | {"serve", "lite"}


@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=pytest.mark.thorough if command in ALIKE else ()) for command in LINES]
)
def test_a_command_serves_or_finishes(
    command: str, model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    line, output = LINES[command], tmp_path / "printed"
    prompt = {"prompt": "a"}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(prompt), encoding="utf-8")
    row = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": prompt | {"model": "tiny"}}
    (tmp_path / "in.jsonl").write_text(json.dumps(row), encoding="utf-8")
    (port,) = free_ports(1)
    values: dict[str, object] = {"model": model, "folder": tmp_path, "port": port}
    if "{triton}" in line.words or "{url}" in line.words:
        server: ApiServer = request.getfixturevalue("server")
        values |= {"triton": server.triton_address, "url": server.url}
    if command in ("pull", "rm"):
        request.getfixturevalue("hub")
    if command == "serve ray":
        pytest.importorskip("ray", reason="needs the extra [ray]")
    words = [*command.split(), *line.words.format(**values).split()]
    with started([sys.executable, "-m", "lmdeploy", *words], line.typed, output) as process:
        if line.serves is not None:
            expect_served(f"http://127.0.0.1:{port}{line.serves}", process, output)
        else:
            assert process.wait(200) == line.status, output.read_text(encoding="utf-8")[-3000:]
    printed = output.read_text(encoding="utf-8")
    assert "Traceback" not in printed
    assert line.prints in printed


@contextmanager
def shell_with_nothing_set(line: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as log:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", line], env={}, cwd="/", stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield shell
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_the_printed_line_serves_the_model_from_a_shell_with_nothing_set(tmp_path: Path) -> None:
    model, workspace, log = make_tiny_llama(tmp_path / "tiny llama"), tmp_path / "workspace", tmp_path / "log"
    command = [sys.executable, "-m", "lmdeploy", "convert", str(model), "--dst-path", str(workspace)]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    ports = Ports.free()  # the line leaves Triton its own ports, which another server may have
    line += f" --http-port={ports.http} --grpc-port={ports.grpc} --metrics-port={ports.metrics}"
    url = f"http://{DEFAULT_TRITON_HOST}:{ports.http}/v2"

    with shell_with_nothing_set(line, log) as shell:
        eventually_sync(lambda: answers(f"{url}/health/ready") or shell.poll() is not None, timeout=START)
        assert shell.poll() is None, log.read_text()
        request = {"messages": '[{"role": "user", "content": "Hi"}]', "max_new_tokens": 4, "ignore_eos": True}
        response = httpx.post(f"{url}/models/ensemble/generate", json=request, trust_env=False)
        assert response.status_code == 200, response.text
        assert response.json()["generate_token_len"] == 4
        assert httpx.get(f"{url}/logging", trust_env=False).status_code == 403  # closed, as with `lmdeploy serve`
        for port in (ports.http, ports.grpc, ports.metrics):
            with pytest.raises(ConnectionRefusedError):  # another address of this machine's than the line listens on
                socket.create_connection(("127.0.0.2", port), timeout=5)
        os.killpg(shell.pid, signal.SIGTERM)
        eventually_sync(lambda: shell.poll() is not None and not session_members(shell.pid))
