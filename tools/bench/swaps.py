"""Three models in the memory of one and a half, alongside llama-server's router: ``python -m tools.bench swaps FILE``.

The models are the default one in 16 bits (chat), the GGUF file that is named (code) and all-MiniLM-L6-v2 (embed), each
of the same weights on both sides. Requests come one after another, in random order: turns of conversations with the
first two, whose prompts repeat what came before, and texts to embed. Both sides get the same prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from lmdeploy.paths import default_model_dir
from lmdeploy.serve.ports import free_ports
from tools.bench.embeddings import llama_gguf
from tools.bench.over_http import Target, open_session
from tools.bench.peers.paths import gguf, llama_tool, thread_count
from tools.bench.report import progress_bar, table
from tools.bench.server import running, running_lmdeploy
from tools.bench.stats import percentile
from tools.bench.workload import Request
from tools.default_embedder import make

CONTEXT = 4096  # tokens of a sequence
DOCUMENT, QUESTION, RESPONSE = 300, 40, 16  # words of the first message and of the others; tokens of a response
CHAT_MODELS = ("chat", "code")


_GREEDY = {"temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class ModelRequest:
    """A prompt for one of the models."""

    model: str
    prompt: str

    async def first_token_latency(self, session: aiohttp.ClientSession, url: str) -> float:
        """Return the seconds until the first token, or until the vector."""
        if self.model in CHAT_MODELS:
            target = Target(url=url, model=self.model, fields=_GREEDY)
            return (await target.send(session, Request(self.prompt, RESPONSE))).first_token_latency
        begin = time.perf_counter()
        body = {"model": self.model, "input": self.prompt}
        async with session.post(f"{url}/v1/embeddings", json=body) as response:
            response.raise_for_status()
            await response.read()
        return time.perf_counter() - begin


def mixed_requests(count: int, conversations: int, seed: int = 0) -> list[ModelRequest]:
    """Return requests for models in random order; a conversation's prompts begin with those before."""
    rng = random.Random(seed)

    def words(number: int) -> str:
        return " ".join("".join(rng.choices("aeioulnrst", k=rng.randint(2, 6))) for _ in range(number))

    histories = {name: [words(DOCUMENT) for _ in range(conversations // 2)] for name in CHAT_MODELS}
    requests = []
    for _ in range(count):
        model = rng.choice((*CHAT_MODELS, "embed"))
        prompt = words(QUESTION)
        if model in CHAT_MODELS:
            turns = histories[model]
            index = rng.randrange(len(turns))
            prompt = turns[index] = f"{turns[index]}\nQuestion: {prompt}\nAnswer: {words(RESPONSE // 2)}"
        requests.append(ModelRequest(model, prompt))
    return requests


@contextmanager
def lmdeploy_server(models: Mapping[str, Path], memory: str) -> Iterator[str]:
    """`lmdeploy serve api_server` with a memory budget for all models, and conversations on disk."""
    with tempfile.TemporaryDirectory() as cache:
        named = [f"{name}={path}" for name, path in models.items()]
        options = ("--models-memory", memory, "--cache-dir", cache, "--session-len", str(CONTEXT))
        with running_lmdeploy(*named, *options) as url:
            yield url


@contextmanager
def llama_router(models: Mapping[str, Path], max_models: int) -> Iterator[str]:
    """llama-server's router: at most this many models at a time."""
    (port,) = free_ports(1)
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as presets:
        for name, path in models.items():
            embeds = "" if name in CHAT_MODELS else "embeddings = true\npooling = mean\n"
            presets.write(f"[{name}]\nmodel = {path}\n{embeds}c = {CONTEXT if name in CHAT_MODELS else 512}\n\n")
        presets.flush()
        command = [
            *(str(llama_tool("llama-server")), "--models-preset", presets.name, "--models-max", str(max_models)),
            *("--host", "127.0.0.1", "--port", str(port), "-t", str(thread_count()), "-np", "1", "--no-webui"),
        ]
        with running(command, f"http://127.0.0.1:{port}") as url:
            yield url


async def first_token_latencies(url: str, requests: Sequence[ModelRequest]) -> list[float]:
    """Return the seconds to the first token of every request; each model has responded once before."""
    async with open_session(1, {}) as session:
        for name in (*CHAT_MODELS, "embed"):
            await ModelRequest(name, "Hello").first_token_latency(session, url)
        latencies = []
        with progress_bar(len(requests), "request") as advance:
            for request in requests:
                latencies.append(await request.first_token_latency(session, url))
                advance()
    return latencies


def main() -> None:
    """Measure each side once, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("code", type=Path, help="a GGUF file of a model that generates")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--memory", default="1200MB", help="of all models of our server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to this file too")
    given = parser.parse_args()
    requests = mixed_requests(given.requests, given.conversations)
    embedder = make()
    files = {"chat": gguf(default_model_dir(), 16), "code": given.code.absolute()}
    sides = {f"lmdeploy, {given.memory}": lmdeploy_server(files | {"embed": embedder}, given.memory)}
    gguf_files = files | {"embed": llama_gguf(embedder, "bf16")}
    sides |= {f"llama-server, {count} at a time": llama_router(gguf_files, count) for count in (1, 2)}
    latencies = {}
    for name, server in sides.items():
        with server as url:
            latencies[name] = asyncio.run(first_token_latencies(url, requests))
    rows = [[n, f"{sum(t):.1f} s", *(f"{percentile(t, p):.2f} s" for p in (50, 95))] for n, t in latencies.items()]
    print(table(("server", "sum of times to first token", "median", "95 %"), rows))
    if given.json:
        given.json.write_text(json.dumps(latencies))
