"""OpenVINO GenAI: its continuous batching pipeline, in a process of its own environment."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.bench.peers.paths import openvino_python, thread_count
from tools.bench.stats import Record
from tools.bench.workload import TokenRequest

_WORKER = Path(__file__).with_name("genai_worker.py")
_CACHE_GIB = 1
_STOP_SECONDS = 20


class GenAI:
    """A pipeline that answers requests; made by :func:`genai`."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def generate(self, requests: Sequence[TokenRequest], concurrency: int) -> list[Record]:
        """Answer all requests, greedily, this many at a time.

        Raises `RuntimeError` if the process ended, or a response has not the length asked for.
        """
        run = {"requests": [[r.input_ids, r.output_len] for r in requests], "concurrency": concurrency}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(run) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            printed = self._log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"OpenVINO GenAI ended while it answered:\n{printed[-2000:]}")
        records = []
        for request, (started, arrivals) in zip(requests, json.loads(line), strict=True):
            record = Record(started, [(time, count) for time, count in arrivals], len(request.input_ids))
            if record.output_len != request.output_len:
                raise RuntimeError(
                    f"OpenVINO GenAI gave a response of {record.output_len} tokens, expected {request.output_len}"
                )
            records.append(record)
        return records


@contextmanager
def genai(model: Path, batch: int) -> Iterator[GenAI]:
    """Run a pipeline for as long as the block lasts.

    ``model``: a GGUF file. ``batch``: most sequences in a step.
    """
    # -P: the folder of the program, whose modules are named after peers, is no place to import from.
    command = [str(openvino_python()), "-P", str(_WORKER), str(model), str(thread_count()), str(batch), str(_CACHE_GIB)]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield GenAI(process, Path(log.name))
        finally:
            try:
                process.communicate(timeout=_STOP_SECONDS)  # closes its input, and so ends it
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
