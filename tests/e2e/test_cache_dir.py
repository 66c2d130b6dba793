"""A server that starts with a cache directory continues yesterday's conversations."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmdeploy.serve.client import TritonClient, TritonRequestError
from lmdeploy.serve.tritonserver import TritonServer
from tests.support.servers import running_triton
from tests.support.waiting import eventually

QUESTION = {"role": "user", "content": "Here are some facts about cities. " * 40 + "What is the capital of France?"}


def generate(server: TritonServer, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"messages": json.dumps(messages), "max_new_tokens": 24}
    url = f"http://{server.http_address}/v2/models/ensemble/generate"
    response = httpx.post(url, json=body, trust_env=False)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


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
    first = generate(triton_server, [QUESTION])
    turns = [QUESTION, {"role": "assistant", "content": first["text_output"]}, {"role": "user", "content": "Why?"}]
    second = generate(triton_server, turns)
    with running_triton(cache_dir=str(tmp_path / "cache")) as server:
        assert generate(server, [QUESTION])["text_output"] == first["text_output"]
    with running_triton(cache_dir=str(tmp_path / "cache")) as server:
        answer = generate(server, turns)
        asyncio.run(administer(server, turns))
        assert not list((tmp_path / "cache").glob("*.kv"))
    assert answer["text_output"] == second["text_output"]
    assert answer["cached_token_len"] >= 256
