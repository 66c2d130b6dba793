"""Answers requests with OpenVINO GenAI; runs in OpenVINO's own environment (`genai.py` starts it).

Reads a line of JSON for each run: ``{"requests": [[input_ids, output_len], ...], "concurrency": n}``, and answers with
a line: ``[[started, [[time, tokens], ...]], ...]``, a request's times in seconds of the system's monotonic clock.
"""

import json
import os
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai


def make_pipeline(model: str, threads: int, batch: int, cache_gib: int) -> Any:
    """Return a pipeline with continuous batching: the backend that is faster here for one stream and for many."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = cache_gib
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 4096
    scheduler.max_num_seqs = batch
    return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})


def respond(pipeline: Any, requests: list[Any], concurrency: int) -> list[Any]:
    """Answer all requests, this many at a time, greedily and as long as each says."""
    records: list[Any] = [[0.0, []] for _ in requests]
    waiting = list(reversed(range(len(requests))))
    open_requests: dict[int, Any] = {}
    while waiting or open_requests:
        while waiting and len(open_requests) < concurrency:
            number = waiting.pop()
            input_ids, output_len = requests[number]
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = output_len
            config.ignore_eos = True
            config.do_sample = False
            records[number][0] = time.perf_counter()
            prompt = openvino.Tensor(np.array([input_ids], dtype=np.int64))
            open_requests[number] = pipeline.add_request(number, prompt, config)
        pipeline.step()
        now = time.perf_counter()
        for number, handle in list(open_requests.items()):
            while handle.can_read():
                for output in handle.read().values():
                    records[number][1].append([now, len(output.generated_ids)])
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                del open_requests[number]
    return records


def main() -> None:
    """Serve until standard input ends."""
    model, threads, batch, cache_gib = sys.argv[1], *map(int, sys.argv[2:5])
    responses = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no response
    pipeline = make_pipeline(model, threads, batch, cache_gib)
    for line in sys.stdin:
        run = json.loads(line)
        print(json.dumps(respond(pipeline, run["requests"], run["concurrency"])), file=responses, flush=True)


if __name__ == "__main__":
    main()
