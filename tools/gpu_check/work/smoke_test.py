"""Whether anything runs: an engine on the device answers as one on the CPU does, in float32, to the last token."""

from __future__ import annotations

import random

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.shapes import SHAPES, tiny
from tools.gpu_check.checkpoints import write
from tools.gpu_check.work.context import Context

_OUTPUT = 24


def main(context: Context) -> None:
    """Compare tokens.

    Raises
    ------
    RuntimeError
        The devices disagree.
    """
    module = context.native()
    print(f"{module.device_count()} device(s)", flush=True)
    from lmdeploy import GenerationConfig, pipeline

    directory = context.cache / "shapes" / "first-light"
    write(tiny(SHAPES["llama-8b"]), directory)
    letters = random.Random(0)
    prompts = ["".join(letters.choices("abcdefgh ", k=length)) for length in (3, 40, 90)]
    greedy = GenerationConfig(max_new_tokens=_OUTPUT, ignore_eos=True)
    responses = {}
    for device in ("cuda", "cpu"):
        config = TurbomindEngineConfig(
            device=device, dtype="float32", max_batch_size=4, session_len=256, cache_max_entry_count=64
        )
        with pipeline(str(directory), backend_config=config) as pipe:
            responses[device] = [response.token_ids for response in pipe(prompts, gen_config=greedy)]
    same = sum(
        a == b for ours, theirs in zip(*responses.values(), strict=True) for a, b in zip(ours, theirs, strict=True)
    )
    context.note("smoke test: tokens as the CPU's, share", same / (_OUTPUT * len(prompts)))
    if responses["cuda"] != responses["cpu"]:
        raise RuntimeError(f"the device answers {responses['cuda']}, the CPU {responses['cpu']}")
