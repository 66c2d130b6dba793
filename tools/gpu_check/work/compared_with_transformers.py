"""Our tokens/s alongside those of `transformers`' ``generate``, prompts included, of the same shape and requests."""

from __future__ import annotations

import random
import time

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.inprocess import in_process
from tools.bench.shapes import SHAPES, tiny
from tools.bench.stats import duration
from tools.bench.workload import EVERY_TOKEN, GREEDY, TokenRequest
from tools.gpu_check.work.context import Context, LeftOut

_SHAPE = "llama-8b"
_PROMPT, _OUTPUT, _BATCHES = 128, 64, (1, 32)
_ROUNDS = 2  # the second counts


def main(context: Context) -> None:
    """Note how many times its rate ours is."""
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise LeftOut(f"no transformers: {error}") from error
    context.native()
    prompt, response = (8, 4) if context.is_dry_run else (_PROMPT, _OUTPUT)
    theirs = dict(_theirs(context, prompt, response))
    config = TurbomindEngineConfig(
        **EVERY_TOKEN,
        device="cuda",
        dtype="bfloat16",
        max_batch_size=max(_BATCHES),
        session_len=512,
        cache_max_entry_count=256,
    )
    with in_process(str(context.model(_SHAPE)), config) as engine:
        tokens = random.Random(0)
        for batch, rate in theirs.items():
            for _ in range(_ROUNDS):
                requests = [TokenRequest(tuple(tokens.choices(range(256), k=prompt)), response) for _ in range(batch)]
                seconds = duration(engine.generate(requests, batch, GREEDY))
            context.note(f"tokens/s alongside transformers, batch {batch}", batch * response / seconds)
            context.note(f"times transformers, batch {batch}", batch * response / seconds / rate)


def _theirs(context: Context, prompt: int, response: int) -> list[tuple[int, float]]:
    """Return batches and tokens/s of ``generate`` as it is called without options; its weights are random too."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = tiny(SHAPES[_SHAPE]) if context.is_dry_run else SHAPES[_SHAPE]
    fields = {name: value for name, value in shape.config.items() if name != "model_type"}
    device = torch.device(context.torch_device)
    with device:
        model = AutoModelForCausalLM.from_config(LlamaConfig(**fields), dtype=torch.bfloat16).eval()
    rates = []
    for batch in _BATCHES:
        ids = torch.randint(0, 256, (batch, prompt), device=device)
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            with torch.no_grad():
                model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=response, min_new_tokens=response,
                    do_sample=False, pad_token_id=0,
                )  # fmt: skip
            seconds = time.perf_counter() - begin
        context.note(f"tokens/s of transformers, batch {batch}", batch * response / seconds)
        rates.append((batch, batch * response / seconds))
    del model
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return rates
