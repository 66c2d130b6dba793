"""A model that only `transformers` knows, served by tritonserver: it answers, and outlives its worker."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy.serve.client import GenerateRequest, TritonClient
from lmdeploy.serve.errors import TritonUnavailable
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.tokenizer import Tokenizer
from tests.support.commands import api_server
from tests.support.processes import children, command_line
from tests.support.servers import START, running_triton
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.support.waiting import eventually_sync

MANUAL = Path(__file__).parents[1] / "data/own_llama"
PROMPT = "The quick brown fox"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(
        tmp_path_factory.mktemp("tiny") / "persimmon", "PersimmonForCausalLM", max_position_embeddings=2048
    )


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[TritonServer]:
    with running_triton(directory, session_len=2048, cache_max_entry_count=64) as server:
        yield server


def respond(server: TritonServer, tokens: int) -> str:
    """Return a greedy response."""

    async def generate() -> str:
        async with TritonClient(server.grpc_address) as client:
            request = GenerateRequest(text_input=PROMPT, max_new_tokens=tokens, ignore_eos=True)
            return "".join([chunk.text async for chunk in client.generate(request)])

    return asyncio.run(generate())


def is_ready(server: TritonServer) -> bool:
    async def generate() -> bool:
        async with TritonClient(server.grpc_address) as client:
            return await client.is_ready()

    return asyncio.run(generate())


def worker_of(server: TritonServer) -> int | None:
    assert server.pid is not None
    for pid in children(server.pid):
        if "lmdeploy.pytorch.worker" in command_line(pid):
            return pid
    return None


def test_a_model_that_turbomind_does_not_know_is_served(server: TritonServer, directory: Path) -> None:
    tokenizer = Tokenizer(str(directory))
    ids = tokenizer.encode(PROMPT)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = model.generate(torch.tensor([ids]), max_new_tokens=12, min_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert respond(server, 12) == tokenizer.decode(expected.tolist())


def test_a_worker_that_is_killed_ends_what_is_open_and_comes_back_in_the_same_server(server: TritonServer) -> None:
    before, pid, first = respond(server, 12), server.pid, worker_of(server)
    assert first is not None

    async def lose_the_worker() -> None:
        async with TritonClient(server.grpc_address) as client:
            request = GenerateRequest(text_input=PROMPT, max_new_tokens=2000, ignore_eos=True)
            async for _ in client.generate(request):
                os.kill(first, signal.SIGKILL)

    assert is_ready(server)
    with pytest.raises(TritonUnavailable, match="the worker was killed by signal 9"):
        asyncio.run(lose_the_worker())
    assert not is_ready(server)

    def is_back() -> bool:
        try:
            return respond(server, 12) == before
        except TritonUnavailable:
            return False

    eventually_sync(lambda: is_ready(server), timeout=START)
    assert is_back()
    assert server.pid == pid


def test_an_architecture_that_only_the_users_classes_know_is_served(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", tie_word_embeddings=False)
    tokenizer = Tokenizer(str(directory))
    ids = tokenizer.encode(PROMPT)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected = model.generate(torch.tensor([ids]), max_new_tokens=8, min_new_tokens=8, do_sample=False)[0, len(ids) :]
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["MineForCausalLM"]}))
    module_map = tmp_path / "module_map.py"
    module_map.write_text(
        f"import sys\nsys.path.append({str(MANUAL)!r})\nimport own_llama\n"
        "MODULE_MAP = {'MineForCausalLM': own_llama.LlamaForCausalLM}\n"
    )
    options = ("--backend", "pytorch", "--custom-module-map", str(module_map), "--session-len", "512")
    with api_server(str(directory), *options) as server:
        server.wait_ready()
        body = {"model": "model", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answered = httpx.post(f"{server.url}/v1/completions", json=body).json()
    assert answered["choices"][0]["text"] == tokenizer.decode(expected.tolist())
