"""``transformers`` generate on the same requests."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lmdeploy.paths import locate_model
from tools.bench.stats import Record, Summary, summarize
from tools.bench.workload import Request


class Transformers:
    """A model loaded by ``transformers``; greedy, and as long as each request says.

    ``model_path``: a Hugging Face directory, or a model's name. ``dtype``: type of weights and activations.
    """

    def __init__(self, model_path: Path, dtype: str = "float32") -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging

        logging.disable_progress_bar()
        directory = locate_model(str(model_path))
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    def one_at_a_time(self, requests: Sequence[Request]) -> Summary:
        """Answer one request after another: what a loop around ``generate`` does with many callers."""
        started = time.perf_counter()
        records = [self._answer([request])[0] for request in requests]
        return summarize(records, time.perf_counter() - started)

    def _answer(self, requests: Sequence[Request]) -> list[Record]:
        records = [Record(started=time.perf_counter()) for _ in requests]
        encoded = self._tokenizer([request.prompt for request in requests], return_tensors="pt", padding=True)
        max_tokens = max(request.output_len for request in requests)
        with self._torch.inference_mode():
            self._model.generate(
                **encoded,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                stopping_criteria=[self._step_clock(records)],
            )
        for record, request, mask in zip(records, requests, encoded["attention_mask"], strict=True):
            record.input_len = int(mask.sum())
            record.arrivals = record.arrivals[: request.output_len]
        return records

    def _step_clock(self, records: Sequence[Record]) -> Callable[..., Any]:
        """Return a stopping criterion that never stops, and notes the time of every step."""

        def record_step(input_ids: Any, _scores: Any, **_: Any) -> Any:
            now = time.perf_counter()
            for record in records:
                record.arrivals.append((now, 1))
            return self._torch.zeros(len(input_ids), dtype=self._torch.bool)

        return record_step
