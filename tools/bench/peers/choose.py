"""The peers that a profile tool was asked to compare with, as functions that answer requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tools.bench.inprocess import InProcess
from tools.bench.over_http import run_over_http
from tools.bench.peers.genai import GenAI, genai
from tools.bench.peers.hf import Transformers
from tools.bench.peers.llama_cpp import serving
from tools.bench.peers.places import gguf, why_missing
from tools.bench.stats import Summary, duration, summarize
from tools.bench.workload import GREEDY, Request, TokenRequest

# Answers requests, this many at a time.
Runner = Callable[[Sequence[Request], int], Summary]


@contextmanager
def open_peers(
    names: Sequence[str], engine: InProcess, model_path: Path, bits: int, slots: int, longest: int
) -> Iterator[dict[str, Runner]]:
    """Start peers for as long as the block lasts. One that cannot run is named, with the reason, and left out.

    Parameters
    ----------
    names
        Some of ``places.NAMES``.
    engine
        Ours, whose tokenizer makes the tokens of all peers that take tokens.
    model_path
        The Hugging Face directory all of them run.
    bits
        Of the weights: 4, 8 or 16; ``transformers`` has float32 whatever this says.
    slots
        Most requests open at a time.
    longest
        Most tokens of a request, prompt and response.

    Yields
    ------
    dict[str, Runner]
        By the names that results get.
    """
    runners: dict[str, Runner] = {}
    with ExitStack() as stack:
        for name in names:
            if reason := why_missing(name, model_path, bits):
                print(f"{name}: skipped, {reason}", flush=True)
            elif name == "llama.cpp":
                runners[name] = _over_http(stack.enter_context(serving(gguf(model_path, bits), slots, longest)))
            elif name == "openvino":
                runners[name] = _by_tokens(stack.enter_context(genai(gguf(model_path, bits), slots)), engine)
            else:
                loaded = Transformers(model_path)
                runners["transformers, one at a time"] = _one_at_a_time(loaded)
                if slots > 1:
                    runners["transformers, static batches"] = loaded.static_batches
        yield runners


def longest_request(requests: Sequence[TokenRequest]) -> int:
    """Return the tokens of the longest request, prompt and response."""
    return max(len(request.input_ids) + request.output_len for request in requests)


def _over_http(url: str) -> Runner:
    def run(requests: Sequence[Request], concurrency: int) -> Summary:
        return run_over_http(url, requests, concurrency, GREEDY)

    return run


def _one_at_a_time(peer: Transformers) -> Runner:
    return lambda requests, concurrency: peer.one_at_a_time(requests)


def _by_tokens(peer: GenAI, engine: InProcess) -> Runner:
    def run(requests: Sequence[Request], concurrency: int) -> Summary:
        records = peer.generate(engine.tokenize(requests), concurrency)
        return summarize(records, duration(records))

    return run
