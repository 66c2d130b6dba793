"""The real ``lmdeploy serve triton_client`` of old releases, unmodified, against our server."""

import functools
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.convert import convert
from tests.e2e.test_api_server import api_server
from tests.support.metrics import engine_metrics
from tests.support.old_clients import OldClient
from tests.support.servers import START
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
def server(default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """The default model as ``lmdeploy convert`` makes it, without an option."""
    workspace = tmp_path_factory.mktemp("served") / "workspace"
    convert(str(default_model_dir), workspace, dtype="float32")
    with TritonServer(workspace, ports=Ports.free()) as server:
        server.wait_ready(START)
        yield server


@functools.cache
def expected_responses(version: str, default_model_dir: Path) -> list[str]:
    """Return our greedy responses to the very texts a client's template writes."""
    texts, stop_words = OldClient(version).run_script(RENDER, TEMPLATE, *TURNS)
    responses = []
    config = TurbomindEngineConfig(dtype="float32", session_len=2048, cache_max_entry_count=64)
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


@pytest.mark.alike(most=2)
@pytest.mark.parametrize(("version", "options"), [("0.5.1", ()), ("0.5.1", ("--stream-output",)), ("0.2.6", ())])
def test_two_turns_end_and_a_new_conversation(
    server: TritonServer, default_model_dir: Path, version: str, options: tuple[str, ...]
) -> None:
    first, second = expected_responses(version, default_model_dir)
    shown = OldClient(version).chat(server.grpc_address, *TURNS, "end", TURNS[0], options=options)
    assert shown == [first, second, "", first]


@pytest.mark.alike(most=1)  # test_the_oldest_release_samples_and_leaves_in_peace has the other
@pytest.mark.parametrize("version", ["0.5.1", "0.2.0"])
def test_a_plain_api_server_serves_old_clients_and_keeps_its_name_for_others(version: str) -> None:
    with api_server() as server:
        server.wait_ready()
        first, ended = OldClient(version).chat(server.triton_address, TURNS[0], "end")
        assert first
        assert ended == ""
        [model] = httpx.get(f"{server.url}/v1/models", trust_env=False).json()["data"]
        assert model["id"] == DEFAULT_MODEL_NAME
        server.end(signal.SIGINT)


def test_the_oldest_release_samples_and_leaves_in_peace(server: TritonServer) -> None:
    first, _, ended, again = OldClient("0.2.0").chat(server.grpc_address, *TURNS, "end", TURNS[0])
    assert first
    assert again
    assert ended == ""


def test_the_old_benchmark_gets_as_many_tokens_as_it_asks_for(server: TritonServer) -> None:
    counts = OldClient("0.5.1").run_script(BENCHMARK, server.grpc_address)
    assert len(counts) == 12
    for status, requested, tokens in counts:
        assert status == 0
        assert tokens in (requested, requested + 1)
    eventually_sync(lambda: engine_metrics(server)["cache_blocks_used"] == 0)


def test_an_old_client_cancels_and_goes_on(server: TritonServer) -> None:
    (status, tokens), cancelled, (later, more), ended = OldClient("0.5.1").run_script(CANCEL, server.grpc_address)
    assert (status, cancelled, later, ended) == (0, [0], 0, 0)
    assert 3 <= tokens < 3000
    assert more in (5, 6)
