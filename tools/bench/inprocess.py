"""The engine in this process: no Triton, no gateway, no HTTP."""

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lmdeploy.messages import GenerationConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine, EngineOutput, OutputCallback
from lmdeploy.turbomind.engine_settings import EngineConfig
from lmdeploy.turbomind.spec import ModelSpec
from tools.bench.report import ignore
from tools.bench.stats import Record, Summary, duration, summarize
from tools.bench.workload import Request, TokenRequest


class InProcess:
    """An engine, and the tokenizer of its model.

    ``model_path``: a model directory; empty: the default model.
    """

    def __init__(self, model_path: str, config: EngineConfig) -> None:
        self._engine = Engine(model_path, config)
        self._tokenizer = Tokenizer(str(self._engine.directory.path))

    @property
    def spec(self) -> ModelSpec:
        """Name of the model."""
        return self._engine.directory.spec

    @property
    def step_seconds(self) -> tuple[float, float]:
        """Of all steps until now: in which the model, or the GPU that runs it, worked, and all."""
        metrics = self._engine.metrics()
        return metrics["forward_seconds_total"], metrics["step_seconds_total"]

    @property
    def tokens_computed(self) -> int:
        """Of prompts and responses until now, without those that a cache had."""
        return int(self._engine.metrics()["tokens_computed_total"])

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def tokenize(self, requests: Sequence[Request]) -> list[TokenRequest]:
        """Return requests with their prompts in the model's tokens."""
        return [TokenRequest(tuple(self._tokenizer.encode(r.prompt)), r.output_len) for r in requests]

    def run(
        self,
        requests: Sequence[Request],
        concurrency: int,
        sampling: GenerationConfig,
        advance: Callable[[], None] = ignore,
    ) -> Summary:
        """Answer all requests, this many at a time; as :meth:`generate`, in numbers."""
        records = self.generate(self.tokenize(requests), concurrency, sampling, advance)
        return summarize(records, duration(records))

    def generate(
        self,
        requests: Sequence[TokenRequest],  # started in this order; a new one as soon as one ends
        concurrency: int,  # most requests open at a time
        sampling: GenerationConfig,  # how to choose tokens; lengths come from the requests
        advance: Callable[[], None] = ignore,  # called after each request
    ) -> list[Record]:
        """Answer all requests, this many at a time; raise `RuntimeError` if a request failed."""
        records = [Record(started=0.0, input_len=len(request.input_ids)) for request in requests]
        ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        for number, (request, record) in enumerate(zip(requests, records, strict=True)):
            if number >= concurrency:
                _check(ended.get())
                advance()
            record.started = time.perf_counter()
            length = fixed_length(sampling, request.output_len)
            self._engine.submit(request.input_ids, length, _recorder(record, ended))
        for _ in range(min(concurrency, len(requests))):
            _check(ended.get())
            advance()
        return records


def _recorder(record: Record, ended: "queue.SimpleQueue[str]") -> OutputCallback:
    """Return a callback that notes a request's tokens, and at its end its error or the empty string."""

    def record_output(output: EngineOutput) -> None:
        record.arrive(output.token_ids)
        if output.finish_reason:
            ended.put(output.error)

    return record_output


def _check(error: str) -> None:
    if error:
        raise RuntimeError(f"a request failed: {error}")


def fixed_length(sampling: GenerationConfig, output_len: int) -> GenerationConfig:
    """Return a config that generates exactly this many tokens."""
    return GenerationConfig(
        max_new_tokens=output_len,
        ignore_eos=True,
        do_sample=sampling.do_sample,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        random_seed=sampling.random_seed,
    )


@contextmanager
def in_process(model_path: str, config: EngineConfig) -> Iterator[InProcess]:
    """Run an engine for as long as the block lasts."""
    engine = InProcess(model_path, config)
    try:
        yield engine
    finally:
        engine.close()
