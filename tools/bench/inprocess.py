"""The engine in this process: no Triton, no gateway, no HTTP."""

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine, EngineOutput, OutputCallback
from tools.bench.stats import Record, Summary, summarize
from tools.bench.workload import Request


class InProcess:
    """An engine, and the tokenizer of its model.

    Parameters
    ----------
    model_path
        A model directory; empty: the default model.
    config
        How the engine runs.
    """

    def __init__(self, model_path: str, config: TurbomindEngineConfig) -> None:
        self._engine = Engine(model_path, config)
        self._outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
        self._tokenizer = Tokenizer(str(self._engine.directory.path))

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def run(self, requests: Sequence[Request], concurrency: int, sampling: GenerationConfig) -> Summary:
        """Answer all requests, so many at a time.

        Parameters
        ----------
        requests
            Started in this order; a new one as soon as one ends.
        concurrency
            Most requests open at a time.
        sampling
            How to choose tokens; lengths come from the requests.

        Raises
        ------
        RuntimeError
            A request failed.
        """
        prompts = [self._tokenizer.encode(request.prompt) for request in requests]
        records = [Record(started=0.0, input_len=len(prompt)) for prompt in prompts]
        ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        started = time.perf_counter()
        for number, (request, prompt, record) in enumerate(zip(requests, prompts, records, strict=True)):
            if number >= concurrency:
                _check(ended.get())
            record.started = time.perf_counter()
            self._engine.submit(prompt, fixed_length(sampling, request), _note_in(record, ended))
        for _ in range(min(concurrency, len(requests))):
            _check(ended.get())
        return summarize(records, time.perf_counter() - started)


def _note_in(record: Record, ended: "queue.SimpleQueue[str]") -> OutputCallback:
    """Return a callback that notes a request's tokens, and at its end its error or the empty string."""

    def note(output: EngineOutput) -> None:
        if output.token_ids:
            record.arrivals.append((time.perf_counter(), len(output.token_ids)))
        if output.finish_reason:
            ended.put(output.error)

    return note


def _check(error: str) -> None:
    if error:
        raise RuntimeError(f"a request failed: {error}")


def fixed_length(sampling: GenerationConfig, request: Request) -> GenerationConfig:
    """Return a config that generates exactly as many tokens as the request says."""
    return GenerationConfig(
        max_new_tokens=request.output_len,
        ignore_eos=True,
        do_sample=sampling.do_sample,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        random_seed=sampling.random_seed,
    )


@contextmanager
def in_process(model_path: str, config: TurbomindEngineConfig) -> Iterator[InProcess]:
    """Run an engine for as long as the block lasts."""
    engine = InProcess(model_path, config)
    try:
        yield engine
    finally:
        engine.close()
