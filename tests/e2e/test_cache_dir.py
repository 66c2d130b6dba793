"""A server that starts with a cache directory continues yesterday's conversations."""

import json
from pathlib import Path
from typing import Any

import httpx

from lmdeploy.serve.tritonserver import TritonServer
from tests.support.servers import running_triton

QUESTION = {"role": "user", "content": "Here are some facts about cities. " * 40 + "What is the capital of France?"}


def asked(server: TritonServer, messages: list[dict[str, str]]) -> dict[str, Any]:
    body = {"messages": json.dumps(messages), "max_new_tokens": 24}
    url = f"http://{server.http_address}/v2/models/ensemble/generate"
    response = httpx.post(url, json=body, timeout=120, trust_env=False)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_restarted_server_finds_what_the_one_before_computed(tmp_path: Path) -> None:
    with running_triton(enable_prefix_caching=False) as server:
        first = asked(server, [QUESTION])
        turns = [QUESTION, {"role": "assistant", "content": first["text_output"]}, {"role": "user", "content": "Why?"}]
        second = asked(server, turns)
    with running_triton(cache_dir=str(tmp_path / "cache")) as server:
        assert asked(server, [QUESTION])["text_output"] == first["text_output"]
    with running_triton(cache_dir=str(tmp_path / "cache")) as server:
        answer = asked(server, turns)
    assert answer["text_output"] == second["text_output"]
    assert answer["cached_token_len"] >= 256
