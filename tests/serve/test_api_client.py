"""`APIClient`, ``lmdeploy serve api_client``, ``lmdeploy.serve`` and ``lmdeploy.client``."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from lmdeploy.messages import PytorchEngineConfig
from lmdeploy.serve.openai.api_client import APIClient, get_model_list, get_streaming_response
from openai_gateway.endpoints.interactive.sessions import engine_session
from openai_gateway.settings import Settings
from tests.support.fake_triton import FakeTriton, Script, token_ids
from tests.support.gateways import running_gateway

REPLY = "The capital of France is Paris."
LONG = "prompt must be shorter than the session length of 4096 tokens, got 5000"  # the engine's words


@pytest.fixture
def url(triton: FakeTriton) -> Iterator[str]:
    with running_gateway(Settings(triton_address=triton.address, api_keys=("k",))) as address:
        yield address


@pytest.fixture
def api(url: str) -> Iterator[APIClient]:
    with APIClient(url, api_key="k") as client:
        yield client


def test_models_are_listed_and_remembered(api: APIClient, url: str) -> None:
    assert api.available_models == ["fake-model"]
    assert api.available_models is api.available_models
    with APIClient(url.removeprefix("http://"), api_key="wrong") as stranger:
        assert stranger.available_models is None


def test_completions_are_yielded_whole_or_in_pieces(api: APIClient) -> None:
    (whole,) = api.chat_completions_v1("fake-model", [{"role": "user", "content": "hi"}])
    assert whole["choices"][0]["message"]["content"] == REPLY
    pieces = list(api.chat_completions_v1("fake-model", "hi", stream=True))
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert "".join(delta["content"] for delta in deltas) == REPLY
    assert {delta["role"] for delta in deltas} == {"assistant"}
    assert deltas[-1]["content"] == ""
    (completion,) = api.completions_v1("fake-model", prompt="hi")
    assert completion["choices"][0]["text"] == REPLY
    assert len(list(api.completions_v1("fake-model", prompt="hi", stream=True))) == 4


def test_every_argument_is_a_field(api: APIClient, triton: FakeTriton) -> None:
    list(api.completions_v1("fake-model", "hi", temperature=0.5, top_k=3, stop=["x"], seed=5, max_tokens=4))
    inputs = triton.requests[0].inputs
    assert (inputs["temperature"], inputs["top_k"], inputs["stop_words"]) == (0.5, 3, ["x"])
    assert (inputs["random_seed"], inputs["max_new_tokens"]) == (5, 4)


def test_errors_are_yielded_like_responses(api: APIClient) -> None:
    (error,) = api.chat_completions_v1("another", "hi")
    assert error["message"] == "The model `another` does not exist."
    (error,) = api.chat_completions_v1("another", "hi", stream=True)
    assert error["code"] == 404
    for temperature in ("hot", 9):
        (error,) = api.chat_completions_v1("fake-model", "hi", temperature=temperature)
        assert error["object"] == "error"


def test_encode_counts(api: APIClient) -> None:
    assert api.encode("hé") == (token_ids("hé"), 4)
    assert api.encode(["a", "bc"], add_bos=False)[1] == [1, 2]
    with pytest.raises(httpx.HTTPStatusError):
        api.encode("bad")


def test_a_conversation_is_remembered_and_ended(api: APIClient, triton: FakeTriton) -> None:
    pieces = list(api.chat("hi", 5, stream=True))
    assert "".join(text for text, _, _ in pieces) == REPLY
    assert [reason for _, _, reason in pieces] == [None, None, None, "stop"]
    assert triton.sessions == {engine_session(5, "k")}
    (output,) = api.chat_interactive_v1("again", session_id=5, interactive_mode=True)
    assert output["text"] == REPLY
    api.end_session(5)
    assert triton.sessions == set()
    with pytest.raises(AssertionError, match="session_id"):
        next(api.chat("hi", -1))


def test_a_turn_that_does_not_fit_its_session_is_said(
    api: APIClient, triton: FakeTriton, caplog: pytest.LogCaptureFixture
) -> None:
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, LONG))
    assert list(api.chat("hi", 6)) == [("", 0, "length")]
    assert "session 6" in caplog.text


def test_the_functions_of_older_clients_work_without_a_client_object(url: str, triton: FakeTriton) -> None:
    assert get_model_list(f"{url}/v1/models", {"authorization": "Bearer k"}) == ["fake-model"]
    assert get_model_list(f"{url}/v1/models") is None
    where = f"{url}/v1/chat/interactive"
    pieces = list(get_streaming_response("hi", where, 5, interactive_mode=True, temperature=0.5, api_key="k"))
    assert "".join(text for text, _, _ in pieces) == REPLY
    assert [reason for _, _, reason in pieces] == [None, None, None, "stop"]
    assert triton.sessions == {engine_session(5, "k")}
    assert triton.requests[-1].inputs["temperature"] == 0.5
    with pytest.raises(RuntimeError, match="valid api key"):
        next(get_streaming_response("hi", where, 5))


def chat(url: str, typed: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmdeploy", "serve", "api_client", url, *flags]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=180)


def test_the_terminal_streams_responses_starts_again_and_leaves(url: str, triton: FakeTriton) -> None:
    done = chat(url, "Hello\\\nthere\nAgain\nend\nOnce more\nexit\n", "--api-key", "k", "--session-id", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(REPLY) == 3
    turns = [json.loads(request.inputs["messages"]) for request in triton.requests]
    requested = list(dict.fromkeys(turn[0]["content"] for turn in turns))
    assert requested == ["Hello\nthere", "Again", "Once more"]
    begins = [request.inputs["sequence_start"] for request in triton.requests]
    assert begins == [False, True, False, False, True]  # the engine did not know the session at first, and after `end`
    assert triton.sessions == set()
    assert {request.inputs["session_id"] for request in triton.requests} == {engine_session(7, "k")}


def test_the_terminal_reports_errors_and_goes_on(url: str, triton: FakeTriton) -> None:
    triton.script = Script(fail_after=0)
    done = chat(url, "Hello\nexit\n", "--api-key", "k")
    assert (done.returncode, "scripted failure" in done.stdout) == (0, True)


def test_a_server_that_is_not_there_or_wants_a_key_is_said_in_a_line(url: str) -> None:
    for done in (chat(url, ""), chat("http://127.0.0.1:1", "")):
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1


def test_lines_can_be_edited_and_recalled_in_a_terminal(url: str, triton: FakeTriton) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "lmdeploy", "serve", "api_client", url, "--api-key", "k"]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "dumb"}
    )
    os.close(terminal)
    shown = b""

    def wait_for(text: bytes, count: int = 1) -> None:
        nonlocal shown
        while shown.count(text) < count:
            shown += os.read(controller, 4096)

    try:
        wait_for(b">>> ")
        os.write(controller, b"Hexlo\x1b[D\x1b[D\x1b[D\x04l\n")  # left, left, left, delete, l
        wait_for(REPLY.encode())
        wait_for(b">>> ", 2)
        os.write(controller, b"\x1b[A\n")  # the last line again
        wait_for(REPLY.encode(), 2)
        wait_for(b">>> ", 3)
        os.write(controller, b"exit\n")
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    requested = [json.loads(request.inputs["messages"])[0]["content"] for request in triton.requests]
    assert set(requested) == {"Hello"}


@pytest.mark.parametrize(
    "imports",
    [
        "import lmdeploy; import lmdeploy.serve.openai.api_client",
        "from lmdeploy.serve.openai.api_client import APIClient; import lmdeploy",
        "import lmdeploy.serve.client as client; import lmdeploy; assert client.TritonClient",
        "import lmdeploy",
        "import lmdeploy; from lmdeploy import serve; assert serve is lmdeploy.serve",
    ],
)
def test_serve_is_a_function_and_a_package_in_any_order_of_imports(imports: str) -> None:
    check = (
        "assert callable(lmdeploy.serve); assert callable(lmdeploy.client); import lmdeploy.serve.ports as p; p.Ports"
    )
    done = subprocess.run([sys.executable, "-c", f"{imports}; {check}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_client_connects_to_a_running_server(url: str) -> None:
    import lmdeploy

    assert lmdeploy.client(url, api_key="k").available_models == ["fake-model"]


def test_serve_reports_why_a_server_did_not_start(tmp_path: object) -> None:
    import lmdeploy
    from lmdeploy.serve.api import ServeError

    with pytest.raises(ServeError, match="no-such-model"):
        lmdeploy.serve(f"{tmp_path}/no-such-model", server_port=0 + _free())
    with pytest.raises(ValueError, match="backend"):
        lmdeploy.serve("", backend="magic")


def test_serve_hands_what_it_is_reported_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import lmdeploy
    from lmdeploy.cli.main import make_parser
    from lmdeploy.model import chat_template_for

    started: list[tuple[list[str], dict[str, str]]] = []

    class Started(Exception):
        """The command is known; there is no need to run it."""

    def start(command: list[str], *, env: dict[str, str], **_: object) -> None:
        started.append((command, env))
        raise Started

    monkeypatch.setattr("lmdeploy.serve.api.ChildProcess", start)
    with pytest.raises(Started):
        lmdeploy.serve(
            "m",
            "name",
            backend_config=lmdeploy.TurbomindEngineConfig(session_len=512),
            chat_template_config=lmdeploy.ChatTemplateConfig("chatml", meta_instruction="Be brief."),
            server_port=4711,
            api_keys=["a", "b"],
            allow_origins=["x", "y"],
            allow_credentials=True,
            proxy_url="http://p:1",
            max_log_len=9,
            tp=2,
        )
    [(command, env)] = started
    args = make_parser().parse_args(command[3:])
    assert (args.model, args.model_name, args.server_port, args.api_keys) == ("m", "name", 4711, [])
    assert env["LMDEPLOY_API_KEYS"] == "a\nb"  # the command line is for everybody to read
    assert (args.allow_origins, args.allow_credentials, args.disable_fastapi_docs) == (["x", "y"], True, False)
    assert (args.proxy_url, args.max_log_len) == ("http://p:1", 9)
    assert json.loads(env["LMDEPLOY_ENGINE_CONFIG"]) == {"session_len": 512, "tp": 2}
    template = chat_template_for("", args.chat_template)
    assert "Be brief." in template.render([{"role": "user", "content": "Hi"}])


REJECTED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "pytorch": ({"backend_config": PytorchEngineConfig(device_type="maca")}, ValueError, "MetaX"),
    "typo": ({"sesion_len": 5}, TypeError, "did you mean 'session_len'"),
    "vision": ({"vision_config": object()}, ValueError, "vision_config must be a VisionConfig"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_serve_refuses_what_it_cannot_honour(case: str) -> None:
    import lmdeploy

    keywords, error, reason = REJECTED[case]
    with pytest.raises(error, match=reason):
        lmdeploy.serve("no-such-model", **keywords)


def _free() -> int:
    from lmdeploy.serve.ports import free_ports

    return free_ports(1)[0]


def test_run_local_hands_what_it_is_reported_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import lmdeploy
    from lmdeploy.cli.main import make_parser
    from lmdeploy.serve.gradio.turbomind_coupled import run_local

    started: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], check: bool) -> subprocess.CompletedProcess[str]:
        started.append((command, env))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr("lmdeploy.serve.gradio.turbomind_coupled.subprocess.run", run)
    config = lmdeploy.TurbomindEngineConfig(max_batch_size=8)
    assert run_local("m", backend_config=config, server_name="huggingface-space") == 3
    [(command, env)] = started
    args = make_parser().parse_args(command[3:])
    assert (args.target, args.server_name, args.server_port) == ("m", "0.0.0.0", 7860)
    assert json.loads(env["LMDEPLOY_ENGINE_CONFIG"]) == {"max_batch_size": 8}
    with pytest.raises(ValueError, match="backend"):
        run_local("m", backend="magic")
