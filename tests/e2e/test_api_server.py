"""``lmdeploy serve api_server`` as a user starts it."""

import os
import signal
import threading
from pathlib import Path

import httpx
import openai
import tritonclient.grpc as grpcclient

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.ports import free_ports
from tests.support.commands import ApiServer, api_server
from tests.support.processes import session_members
from tests.support.servers import START
from tests.support.waiting import eventually_sync


def complete(server: ApiServer, model: str = DEFAULT_MODEL_NAME) -> str:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        response = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=16,
        )
    return response.choices[0].message.content or ""


def end(server: ApiServer, signum: int, status: int) -> None:
    """End a server as a signal does; it leaves no process behind."""
    triton = server.triton_pid()
    assert server.end(signum) == status, server.output
    assert not session_members(server.process.pid)
    assert not session_members(triton)


def test_it_prints_urls_and_the_chat_page_follows_when_the_api_is_served() -> None:
    (page,) = free_ports(1)
    name = "internlm2-chat-7b"
    with api_server("--webui", "--webui-port", str(page), "--model-name", name) as server:
        server.wait_ready()
        assert f":{server.port}/v1" in server.output
        assert f"http://localhost:{page}/ is starting" in server.output
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
        with grpcclient.InferenceServerClient(server.triton_address) as client:  # as older clients read the name
            config = client.get_model_config("turbomind").config
        assert config.parameters["model_name"].string_value == name
        assert "Paris" in complete(server, name)
        eventually_sync(lambda: f"chat page   http://localhost:{page}/\n" in server.output, timeout=START)
        assert "gradio" in httpx.get(f"http://localhost:{page}/", trust_env=False).text
        end(server, signal.SIGTERM, 143)


def test_a_killed_tritonserver_comes_back_and_open_streams_end_with_an_error_event() -> None:
    story = {
        "model": DEFAULT_MODEL_NAME,
        "messages": [{"role": "user", "content": "Count to one thousand."}],
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 4000,
    }
    ended: list[str] = []
    begun = threading.Barrier(5)

    def read(url: str) -> None:
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=story, trust_env=False) as response:
            lines = (line for line in response.iter_lines() if line)
            last = next(lines)
            begun.wait(180)
            for line in lines:
                last = line
        ended.append(last)

    with api_server() as server, httpx.Client(base_url=server.url, trust_env=False) as http:
        server.wait_ready()
        readers = [threading.Thread(target=read, args=(server.url,)) for _ in range(4)]
        for reader in readers:
            reader.start()
        begun.wait(180)
        os.kill(server.triton_pid(), signal.SIGKILL)
        for reader in readers:
            reader.join(180)
        assert len(ended) == 4
        assert all('"service_unavailable"' in last for last in ended)
        eventually_sync(lambda: http.get("/health").status_code == 503)
        rejected = http.post("/v1/chat/completions", json=story)  # no request hangs
        assert rejected.status_code == 503
        assert rejected.json()["error"]["code"] == "service_unavailable"
        eventually_sync(lambda: http.get("/health").status_code == 200, timeout=START)
        assert "Paris" in complete(server)
        end(server, signal.SIGINT, 130)


def test_a_model_that_is_not_there_is_named_and_nothing_starts(tmp_path: Path) -> None:
    with api_server(str(tmp_path / "no-such-model")) as server:
        assert server.process.wait(180) == 1
        eventually_sync(lambda: "no-such-model" in server.output)
        assert "Traceback" not in server.output
