"""Libraries' kernels at work in small models, those for each thing in its own process.

What breaks the device, hangs, or changes what a model answers is left out of all later stages.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.shapes import SHAPES
from tools.gpu_check.checkpoints import write
from tools.gpu_check.table import LIBRARIES
from tools.gpu_check.work.context import LIBRARY_USES, Context

_SECONDS = 60  # for a process; a first launch of large kernels takes some
_DRY_SECONDS = 240  # under the emulation, where all processes share a few cores
_ROWS = 200  # of a prompt: float8 from 192 on
_MOST_DIFFERENCE = 0.25  # of the logits of a token; what rounds to float8 by 2^-4 is off by as much
_SMALL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 2,
}
_SHAPES = {"scales": "fp8-8b", "experts": "mixtral", "prompts": "llama-8b", "latents": "deepseek"}


def main(context: Context, use: str = "") -> None:
    """Find what can be used; of a ``use`` alone, whether it can.

    Raises
    ------
    RuntimeError
        Answers differ.
    """
    if use:
        _compare(context, use)
        return
    context.note(LIBRARIES, "0")
    with ThreadPoolExecutor(len(LIBRARY_USES)) as processes:
        seconds = _DRY_SECONDS if context.is_dry_run else _SECONDS
        usable = [use for use in processes.map(partial(_usable, seconds=seconds), LIBRARY_USES) if use]
    context.note(LIBRARIES, ",".join(usable) or "0")


def _usable(use: str, seconds: int) -> str:
    """Return the ``use`` if its process ends well, else nothing."""
    command = [sys.executable, "-m", "tools.gpu_check.work", "libraries", use]
    try:
        subprocess.run(command, timeout=seconds, check=True)
    except subprocess.SubprocessError as error:
        print(f"libraries for {use} are left out from now on: {error}", flush=True)
        return ""
    return use


def _compare(context: Context, use: str) -> None:
    """Compare what a small model answers with the library and without."""
    context.native()
    from lmdeploy import GenerationConfig, pipeline

    config = TurbomindEngineConfig(
        device="cuda", dtype="bfloat16", max_batch_size=4, session_len=512, cache_max_entry_count=64,
        num_tokens_per_iter=_ROWS,
    )  # fmt: skip
    few = GenerationConfig(max_new_tokens=4, ignore_eos=True)
    shape = SHAPES[_SHAPES[use]]
    small = replace(shape, config=shape.config | {name: size for name, size in _SMALL.items() if name in shape.config})
    directory = context.cache / "shapes" / f"library-{use}"
    write(small, directory)
    prompt = random.Random(0).choices(range(256), k=_ROWS)
    found = []
    for wanted in ("0", use):
        os.environ["LMDEPLOY_CUDA_LIBRARIES"] = wanted
        with pipeline(str(directory), backend_config=config) as pipe:
            found.append(pipe.get_logits(prompt))
            responses = pipe(["a", "few", "questions"], gen_config=few)
        print(f"{wanted}: {[response.token_ids for response in responses]}", flush=True)
    without, with_it = found
    difference = float(((with_it - without).norm(dim=-1) / without.norm(dim=-1)).max())
    context.note(f"libraries for {use}: rows of logits differ by at most", difference)
    if not difference < _MOST_DIFFERENCE:
        raise RuntimeError(f"with a library for {use} a model answers otherwise than without")
