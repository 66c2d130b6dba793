"""Smoke test: an engine on the device answers as one on the CPU does, in float32, to the last token."""

from __future__ import annotations

import random

from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.paths import default_model_dir
from tools.bench import random_model
from tools.bench.checkpoints import write
from tools.bench.inprocess import in_process
from tools.bench.shapes import SHAPES, tiny
from tools.bench.workload import GREEDY
from tools.gpu_check.work.context import Context, random_prompts

_OUTPUT = 24


def main(context: Context) -> None:
    """Compare tokens; and write a stand-in for the default model, whose tokenizer tests take, where that is not here.

    Raises `RuntimeError` if the devices disagree.
    """
    if not (default_model_dir() / "tokenizer.json").exists():
        print(random_model.write("tiny", default_model_dir()))
    print(f"{context.native().device_count()} device(s)", flush=True)
    directory = context.shapes / "smoke-test"
    write(tiny(SHAPES["llama-8b"]), directory)
    requests = random_prompts(random.Random(0), [(length, _OUTPUT) for length in (3, 40, 90)])
    tokens = {}
    for device in ("cuda", "cpu"):
        config = TurbomindEngineConfig(
            device=device, dtype="float32", max_batch_size=4, session_len=256, cache_max_entry_count=64
        )
        with in_process(str(directory), config) as engine:
            tokens[device] = [record.tokens for record in engine.generate(requests, len(requests), GREEDY)]
    if tokens["cuda"] != tokens["cpu"]:
        raise RuntimeError(f"the device answers {tokens['cuda']}, the CPU {tokens['cpu']}")
    context.record("smoke test: tokens as the CPU's", float(sum(map(len, tokens["cuda"]))))
