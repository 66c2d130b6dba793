"""The engine in this process: no Triton, no gateway, no HTTP."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine
from lmdeploy.turbomind.engine_dir import resolve
from tools.bench.stats import Record, Summary, summarize
from tools.bench.workload import Request

POLL_SECONDS = 1.0


class InProcess:
    """An engine, and the tokenizer of its model.

    Parameters
    ----------
    model_path
        Anything ``engine_dir.resolve`` takes; empty: the default model.
    config
        How the engine runs.
    """

    def __init__(self, model_path: str, config: TurbomindEngineConfig) -> None:
        directory = resolve(model_path)
        self._tokenizer = Tokenizer(str(directory.path))
        self._engine = Engine(model_path, config)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()

    def encode(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return the requests' token ids, as the served path would make them."""
        return [self._tokenizer.encode(request.prompt) for request in requests]

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
        """
        prompts = self.encode(requests)
        records: list[Record] = []
        by_number: dict[int, Record] = {}
        started = time.perf_counter()
        while len(records) < len(requests) or by_number:
            while len(by_number) < concurrency and len(records) < len(requests):
                index = len(records)
                record = Record(started=time.perf_counter(), input_len=len(prompts[index]))
                records.append(record)
                by_number[self._engine.submit(prompts[index], fixed_length(sampling, requests[index]))] = record
            self._take_outputs(by_number)
        return summarize(records, time.perf_counter() - started)

    def _take_outputs(self, open_requests: dict[int, Record]) -> None:
        for output in self._engine.poll(POLL_SECONDS):
            if output.error:
                raise RuntimeError(f"request {output.request} failed: {output.error}")
            record = open_requests[output.request]
            if output.token_ids:
                record.arrivals.append((time.perf_counter(), len(output.token_ids)))
            if output.finish_reason:
                del open_requests[output.request]


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
