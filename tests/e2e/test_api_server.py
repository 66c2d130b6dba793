"""``lmdeploy serve api_server`` as a user starts it, and again with yesterday's cache."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc as grpcclient

from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.serve.client import TritonClient, TritonRequestError
from lmdeploy.serve.ports import free_ports
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.commands import ApiServer, api_server
from tests.support.gateways import openai_client
from tests.support.processes import session_members
from tests.support.servers import START, generated, running_triton
from tests.support.waiting import eventually, eventually_sync


def complete(server: ApiServer, model: str = DEFAULT_MODEL_NAME) -> str:
    with openai_client(server.url) as client:
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


def test_a_model_that_is_not_there_is_named_and_nothing_starts(tmp_path: Path) -> None:
    with api_server(str(tmp_path / "no-such-model")) as server:
        assert server.process.wait(180) == 1
        eventually_sync(lambda: "no-such-model" in server.output)
        assert "Traceback" not in server.output


QUESTION = {"role": "user", "content": "Here are some facts about cities. " * 40 + "What is the capital of France?"}


async def administer(server: TritonServer, messages: list[dict[str, str]]) -> None:
    """Pin what the cache has of a conversation, and have everything dropped."""
    async with TritonClient(server.grpc_address, control_key=server.control_key) as client:
        report = await client.control_cache("report")
        assert report["device"]["idle"] > 0
        assert report["device"]["bytes"] > 0
        assert report["disk"]["read"] > 0
        ids = await client.tokenize(messages=messages)
        pinned = await client.control_cache("pin", ids)
        assert 256 <= pinned["tokens"] <= len(ids)
        assert pinned["pinned"]["prompts"] == 1
        assert 0 < pinned["pinned"]["pages"] <= pinned["pinned"]["most_pages"]
        with pytest.raises(TritonRequestError, match="not pinned") as rejected:
            await client.control_cache("unpin", ids[:-1])
        assert rejected.value.code == "NOT_FOUND"
        assert (await client.control_cache("unpin", ids))["pinned"]["prompts"] == 0
        with pytest.raises(TritonRequestError, match="cache_control must be"):
            await client.control_cache("forget")
        dropped = await client.control_cache("drop_memory")
        assert (dropped["device"]["idle"], dropped["device"]["used"]) == (0, 0)
        await client.control_cache("drop_files")

        async def are_gone() -> bool:
            files: int = (await client.control_cache("report"))["disk"]["files"]
            return files == 0

        await eventually(are_gone)


def test_a_restarted_server_finds_what_the_one_before_computed(triton_server: TritonServer, tmp_path: Path) -> None:
    first = generated(triton_server, [QUESTION], max_new_tokens=24)
    turns = [QUESTION, {"role": "assistant", "content": first["text_output"]}, {"role": "user", "content": "Why?"}]
    second = generated(triton_server, turns, max_new_tokens=24)
    with running_triton(cache_dir=str(tmp_path / "cache")) as server:
        assert generated(server, [QUESTION], max_new_tokens=24)["text_output"] == first["text_output"]
        server.stop()
    with running_triton(cache_dir=str(tmp_path / "cache")) as server:
        answer = generated(server, turns, max_new_tokens=24)
        asyncio.run(administer(server, turns))
        assert not list((tmp_path / "cache").glob("*.kv"))
    assert answer["text_output"] == second["text_output"]
    assert answer["cached_token_len"] >= 256
