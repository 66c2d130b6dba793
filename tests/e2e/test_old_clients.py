"""The real ``lmdeploy serve triton_client`` of old releases, unmodified, against our server."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.paths import DEFAULT_MODEL_NAME, cache_root
from tests.support.commands import ApiServer, api_server
from tests.support.metrics import engine_metrics
from tests.support.waiting import eventually_sync

TEMPLATE = "qwen-7b"  # what is chosen for the default model; every old release knows it
TURNS = ["What is the capital of France?", "And of Italy?\nAnswer in one sentence."]
RENDER = """
import json, sys
from lmdeploy.model import MODELS
template = MODELS.get(sys.argv[1])(capability="chat")
texts = [template.get_prompt(text, index == 0) for index, text in enumerate(sys.argv[2:])]
print(json.dumps([texts, template.stop_words]))
"""
# As benchmark/profile_serving.py of those releases: sessions 0, 1, ... that begin and end with each request.
BENCHMARK = """
import json, sys, threading
from lmdeploy.serve.turbomind.chatbot import Chatbot
counts = []
def work(session_id):
    sampling = dict(top_k=1, top_p=1.0, temperature=1.0)
    client = Chatbot(sys.argv[1], ignore_eos=True, capability="completion", log_level="ERROR", **sampling)
    for length in (1, 9, 30):
        for status, text, tokens in client.stream_infer(
            session_id, "Once upon a time", request_output_len=length, sequence_start=True, sequence_end=True
        ):
            pass
        counts.append([status.value, length, tokens])
threads = [threading.Thread(target=work, args=(session_id,)) for session_id in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(counts))
"""
CANCEL = """
import json, sys, threading
from lmdeploy.serve.turbomind.chatbot import Chatbot
client = Chatbot(sys.argv[1], capability="chat", ignore_eos=True, log_level="ERROR")
cancelled, seen = [], 0
for status, text, tokens in client.stream_infer(5, "Tell me a long story.", request_output_len=3000):
    seen += 1
    if seen == 3:
        canceller = threading.Thread(target=lambda: cancelled.append(client.cancel(5).value))
        canceller.start()
canceller.join()
first = [status.value, tokens]
for status, text, tokens in client.stream_infer(5, "Go on.", request_output_len=5):
    pass
print(json.dumps([first, cancelled, [status.value, tokens], client.end(5).value]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A server without an option."""
    with api_server() as server:
        server.wait_ready()
        yield server
        server.end(signal.SIGINT)


@functools.cache
def expected_responses(version: str, default_model_dir: Path) -> list[str]:
    """Return our greedy responses to the very texts a client's template writes."""
    texts, stop_words = OldClient(version).run_script(RENDER, TEMPLATE, *TURNS)
    responses = []
    config = TurbomindEngineConfig(session_len=2048, cache_max_entry_count=64)
    with pipeline(str(default_model_dir), backend_config=config) as pipe:
        # The client stops at the last token of each stop word.
        stops = [pipe.tokenizer.encode(word)[-1] for word in stop_words]
        ids: list[int] = []
        for text in texts:
            ids += pipe.tokenizer.encode(text)
            response = pipe(
                pipe.tokenizer.decode(ids, skip_special_tokens=False),
                GenerationConfig(stop_token_ids=stops),
                do_preprocess=False,
            )
            assert response.input_token_len == len(ids)
            ids += response.token_ids
            responses.append(response.text.strip())  # as `chat` does with what the terminal shows
    return responses


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize(("version", "options"), [("0.5.1", ()), ("0.5.1", ("--stream-output",)), ("0.2.6", ())])
def test_two_turns_end_and_a_new_conversation(
    server: ApiServer, default_model_dir: Path, version: str, options: tuple[str, ...]
) -> None:
    first, second = expected_responses(version, default_model_dir)
    shown = OldClient(version).chat(server.triton_address, *TURNS, "end", TURNS[0], options=options)
    assert shown == [first, second, "", first]


def test_the_model_keeps_its_name_for_others(server: ApiServer) -> None:
    [model] = httpx.get(f"{server.url}/v1/models", trust_env=False).json()["data"]
    assert model["id"] == DEFAULT_MODEL_NAME


def test_the_oldest_release_samples_and_leaves_in_peace(server: ApiServer) -> None:
    first, _, ended, again = OldClient("0.2.0").chat(server.triton_address, *TURNS, "end", TURNS[0])
    assert first
    assert again
    assert ended == ""


def test_the_old_benchmark_gets_as_many_tokens_as_it_asks_for(server: ApiServer) -> None:
    counts = OldClient("0.5.1").run_script(BENCHMARK, server.triton_address)
    assert len(counts) == 12
    for status, requested, tokens in counts:
        assert status == 0
        assert tokens in (requested, requested + 1)
    eventually_sync(lambda: engine_metrics(server)["cache_blocks_used"] == 0)


def test_an_old_client_cancels_and_goes_on(server: ApiServer) -> None:
    (status, tokens), cancelled, (later, more), ended = OldClient("0.5.1").run_script(CANCEL, server.triton_address)
    assert (status, cancelled, later, ended) == (0, [0], 0, 0)
    assert 3 <= tokens < 3000
    assert more in (5, 6)


# Modules that the clients import and we do not have; none of it computes anything here.
_COMMON = (
    "mmengine-lite==0.10.7", "addict==2.4.0", "yapf==0.43.0", "termcolor==3.1.0", "platformdirs==4.3.8",
    "fuzzywuzzy==0.18.0", "accelerate==1.8.1",
)  # fmt: skip
_COMMAND = "from lmdeploy.cli import run; run()"
_PROMPT = "double enter to end input >>> "


class OldClient:
    """One release, with the libraries it needs.

    ``version``: of the PyPI package ``lmdeploy``. It is installed into the cache on first use.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._paths = [_installed(f"lmdeploy=={version}"), _installed(*_COMMON)]

    def chat(self, address: str, *turns: str, options: tuple[str, ...] = ()) -> list[str]:
        """Type turns into ``lmdeploy serve triton_client``, each ended by an empty line, and ``exit``.

        Returns what it printed after each of them. It must leave with status 0.
        """
        typed = "".join(f"{turn}\n\n" for turn in (*turns, "exit"))
        done = self._run(["-c", _COMMAND, "serve", "triton_client", address, *options], typed)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        _, *responses = done.stdout.split(_PROMPT)
        assert len(responses) == len(turns) + 1, done.stdout
        return [response.strip() for response in responses[:-1]]

    def run_script(self, script: str, *arguments: str) -> Any:
        """Run a Python script against the package; return the JSON value it prints on its last line."""
        done = self._run(["-c", script, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def _run(self, arguments: list[str], typed: str = "") -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, self._paths)), "PYTHONWARNINGS": "ignore"}
        with tempfile.TemporaryDirectory() as elsewhere:  # the checkout's lmdeploy must not come first
            return subprocess.run(
                [sys.executable, *arguments],
                input=typed,
                env=env,
                cwd=elsewhere,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )


@functools.cache
def _installed(*requirements: str) -> Path:
    """Return a folder with the Python files of some packages; skip the test, saying why, when they cannot be had."""
    digest = hashlib.sha256(repr(requirements).encode()).hexdigest()[:8]
    folder = cache_root() / "old-clients" / f"{requirements[0].replace('==', '-')}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheels, made = Path(scratch, "wheels"), Path(scratch, "made")
        flags = f"--quiet --no-deps --only-binary :all: --retries 1 --timeout 15 --dest {wheels}"
        download = [sys.executable, "-m", "pip", "download", *flags.split()]
        done = subprocess.run([*download, *requirements], capture_output=True, text=True, timeout=240, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"old LMDeploy client: {' '.join(requirements)} cannot be downloaded ({reason})")
        for wheel in wheels.iterdir():
            with zipfile.ZipFile(wheel) as archive:  # without the CUDA libraries, which the client never loads
                archive.extractall(made, [name for name in archive.namelist() if not name.endswith(".so")])
        made.rename(folder)
    return folder
