"""OpenVINO GenAI: its continuous batching pipeline, in a process of its own environment."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.bench.peers.places import openvino_python, thread_count
from tools.bench.peers.worker import Worker, worker
from tools.bench.stats import Record
from tools.bench.workload import TokenRequest

_WORKER = Path(__file__).with_name("genai_worker.py")
_CACHE_GIB = 1


class GenAI:
    """A pipeline that answers requests; made by :func:`genai`."""

    def __init__(self, process: Worker) -> None:
        self._process = process

    def generate(self, requests: Sequence[TokenRequest], concurrency: int) -> list[Record]:
        """Answer all requests, greedily, this many at a time.

        Raises
        ------
        RuntimeError
            The process ended, or a response has not the length asked for.
        """
        run = {"requests": [[r.input_ids, r.output_len] for r in requests], "concurrency": concurrency}
        records = [
            Record(started, [(time, count) for time, count in arrivals], len(request.input_ids))
            for request, (started, arrivals) in zip(requests, self._process.ask(run), strict=True)
        ]
        for request, record in zip(requests, records, strict=True):
            if record.output_len != request.output_len:
                raise RuntimeError(
                    f"OpenVINO GenAI gave a response of {record.output_len} tokens, expected {request.output_len}"
                )
        return records


@contextmanager
def genai(model: Path, batch: int) -> Iterator[GenAI]:
    """Run a pipeline for as long as the block lasts.

    Parameters
    ----------
    model
        A GGUF file.
    batch
        Most sequences in a step.
    """
    arguments = (model, thread_count(), batch, _CACHE_GIB)
    with worker("OpenVINO GenAI", openvino_python(), _WORKER, *arguments) as process:
        yield GenAI(process)
