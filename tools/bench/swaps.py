"""Three models in the memory of one and a half, alongside llama-server's router: ``python -m tools.bench swaps FILE``.

The models are the default one in 16 bits (chat), the GGUF file that is named (code) and all-MiniLM-L6-v2 (embed), each
of the same weights on both sides. Requests come one after another, in random order: turns of conversations with the
first two, whose prompts repeat what came before, and texts to embed. Both sides get the same prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from lmdeploy.paths import default_model_dir
from lmdeploy.serve.ports import free_ports
from tools.bench.embeddings import llama_gguf
from tools.bench.peers.places import gguf, llama_tool, thread_count
from tools.bench.report import progress_bar, table
from tools.bench.server import running
from tools.bench.stats import percentile
from tools.default_embedder import make

TIMEOUT = 600.0  # seconds, of one request
CONTEXT = 4096  # tokens of a sequence
DOCUMENT, QUESTION, RESPONSE = 300, 40, 16  # words of the first message and of the others; tokens of a response
CHAT_MODELS = ("chat", "code")


@dataclass(frozen=True)
class Request:
    """A prompt for one of the models."""

    model: str
    prompt: str

    def first_token(self, http: httpx.Client) -> float:
        """Return the seconds until the first token, or until the vector."""
        begin = time.perf_counter()
        if self.model not in CHAT_MODELS:
            http.post("/v1/embeddings", json={"model": self.model, "input": self.prompt}).raise_for_status()
            return time.perf_counter() - begin
        body = {"model": self.model, "prompt": self.prompt, "max_tokens": RESPONSE, "temperature": 0, "stream": True}
        first = None
        with http.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as reply:
            reply.raise_for_status()
            for line in reply.iter_lines():
                if first is None and line.startswith("data: {"):
                    first = time.perf_counter() - begin
        if first is None:
            raise RuntimeError(f"{self.model} did not begin a response")
        return first


def requests(count: int, conversations: int, seed: int = 0) -> list[Request]:
    """Return requests for models in random order; a conversation's prompts begin with those before."""
    chance = random.Random(seed)

    def words(number: int) -> str:
        return " ".join("".join(chance.choices("aeioulnrst", k=chance.randint(2, 6))) for _ in range(number))

    histories = {name: [words(DOCUMENT) for _ in range(conversations // 2)] for name in CHAT_MODELS}
    found = []
    for _ in range(count):
        model = chance.choice((*CHAT_MODELS, "embed"))
        prompt = words(QUESTION)
        if model in CHAT_MODELS:
            turns = histories[model]
            index = chance.randrange(len(turns))
            prompt = turns[index] = f"{turns[index]}\nQuestion: {prompt}\nAnswer: {words(RESPONSE // 2)}"
        found.append(Request(model, prompt))
    return found


@contextmanager
def ours(models: Mapping[str, Path], memory: str) -> Iterator[str]:
    """Our server: a memory budget for all models, conversations on disk."""
    port, *others = free_ports(4)
    ports = zip(("http", "grpc", "metrics"), others, strict=True)
    with tempfile.TemporaryDirectory() as cache:
        command = [
            *(sys.executable, "-m", "lmdeploy", "serve", "api_server"),
            *(f"{name}={path}" for name, path in models.items()),
            *("--models-memory", memory, "--cache-dir", cache, "--session-len", str(CONTEXT)),
            *("--server-name", "127.0.0.1", "--server-port", str(port)),
            *(text for name, port in ports for text in (f"--triton-{name}-port", str(port))),
        ]
        with running(command, f"http://127.0.0.1:{port}") as url:
            yield url


@contextmanager
def router(models: Mapping[str, Path], most: int) -> Iterator[str]:
    """llama-server's router: at most this many models at a time."""
    (port,) = free_ports(1)
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as presets:
        for name, path in models.items():
            embeds = "" if name in CHAT_MODELS else "embeddings = true\npooling = mean\n"
            presets.write(f"[{name}]\nmodel = {path}\n{embeds}c = {CONTEXT if name in CHAT_MODELS else 512}\n\n")
        presets.flush()
        command = [
            *(str(llama_tool("llama-server")), "--models-preset", presets.name, "--models-max", str(most)),
            *("--host", "127.0.0.1", "--port", str(port), "-t", str(thread_count()), "-np", "1", "--no-webui"),
        ]
        with running(command, f"http://127.0.0.1:{port}") as url:
            yield url


def first_tokens(side: AbstractContextManager[str], asked: Sequence[Request]) -> list[float]:
    """Return the seconds to the first token of every request; each model has answered once before."""
    fresh = httpx.Limits(max_keepalive_connections=0)  # llama-server closes connections without a word
    with side as url, httpx.Client(base_url=url, timeout=TIMEOUT, trust_env=False, limits=fresh) as http:
        for name in (*CHAT_MODELS, "embed"):
            Request(name, "Hello").first_token(http)
        with progress_bar(len(asked), "request") as advance:
            times = []
            for request in asked:
                times.append(request.first_token(http))
                advance()
    return times


def main() -> None:
    """Measure each side once, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("code", type=Path, help="a GGUF file of a model that generates")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--memory", default="1200MB", help="of all models of our server")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time to this file too")
    given = parser.parse_args()
    asked = requests(given.requests, given.conversations)
    embedder = make()
    files = {"chat": gguf(default_model_dir(), 16), "code": given.code.absolute()}
    sides = {f"ours, {given.memory}": ours(files | {"embed": embedder}, given.memory)}
    theirs = files | {"embed": llama_gguf(embedder, "bf16")}
    sides |= {f"llama-server, {most} at a time": router(theirs, most) for most in (1, 2)}
    times = {name: first_tokens(side, asked) for name, side in sides.items()}
    rows = [[n, f"{sum(t):.1f} s", *(f"{percentile(t, p):.2f} s" for p in (50, 95))] for n, t in times.items()]
    print(table(("server", "sum of times to first token", "median", "95 %"), rows))
    if given.json:
        given.json.write_text(json.dumps(times))
