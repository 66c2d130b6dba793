"""How fast the PyTorch engine decodes and reads prompts: the shape of an 8B Llama in bfloat16."""

from __future__ import annotations

import random
import time

from lmdeploy.messages import PytorchEngineConfig
from tools.bench.inprocess import InProcess, in_process
from tools.bench.stats import median, steady_rate
from tools.bench.workload import EVERY_TOKEN, GREEDY, TokenRequest
from tools.gpu_check.work.context import Context

_SHAPE = "llama-8b"
_CLASS = {"LlamaForCausalLM": "tools.gpu_check.work.random_llama.RandomLlama"}
_BLOCK = 64  # tokens
_ROUNDS = 3  # the first one is measured by itself
_BATCHES, _PROMPTS = (1, 64), (1024, 8192)
_CONTEXT, _OUTPUT = 128, 96


def main(context: Context) -> None:
    """Note tokens/s, and the seconds that loading takes."""
    prompts = (32, 64) if context.is_dry_run else _PROMPTS
    batches = (1, 4) if context.is_dry_run else _BATCHES
    length, output = (16, 5) if context.is_dry_run else (_CONTEXT, _OUTPUT)
    config = PytorchEngineConfig(
        **EVERY_TOKEN,
        device_type=context.torch_device,
        dtype="bfloat16",
        max_batch_size=max(batches),
        session_len=max(prompts) + output + _BLOCK,
        block_size=_BLOCK,
        num_gpu_blocks=max(max(batches) * ((length + output) // _BLOCK + 2), max(prompts) // _BLOCK + 2),
        max_prefill_token_num=max(prompts),
        custom_module_map=_CLASS,
    )
    begin = time.perf_counter()
    with in_process(str(context.model(_SHAPE)), config) as engine:
        context.note("PyTorch engine: load, seconds", time.perf_counter() - begin)
        speed = _Speed(context, engine)
        for batch, named in zip(batches, _BATCHES, strict=True):
            speed.decode(batch, length, output, f"decode {named} x {_CONTEXT}")
        for prompt, named in zip(prompts, _PROMPTS, strict=True):
            speed.prompt(prompt, f"prompt of {named}")


class _Speed:
    def __init__(self, context: Context, engine: InProcess) -> None:
        self._context, self._engine, self._random = context, engine, random.Random(0)

    def decode(self, batch: int, length: int, output: int, what: str) -> None:
        """Note the pace of this many sequences that decode after this many tokens."""
        rates = []
        for _ in range(_ROUNDS):
            requests = [self._request(length, output) for _ in range(batch)]
            rates.append(steady_rate(self._engine.generate(requests, batch, GREEDY)))
        self._note(what, median(rates[1:]))

    def prompt(self, length: int, what: str) -> None:
        """Note the rate of one prompt."""
        seconds = [
            self._engine.generate([self._request(length, 1)], 1, GREEDY)[0].first_token_latency for _ in range(_ROUNDS)
        ]
        self._note(what, length / median(seconds[1:]))
        # Near 1 where nothing is compiled or captured after the start.
        self._context.note(f"PyTorch engine: first {what}, times a later one", seconds[0] / median(seconds[1:]))

    def _note(self, what: str, rate: float) -> None:
        self._context.note(f"PyTorch engine: {what}, tokens/s", rate)

    def _request(self, length: int, output: int) -> TokenRequest:
        return TokenRequest(tuple(self._random.choices(range(256), k=length)), output)
