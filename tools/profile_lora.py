"""What LoRA adapters cost: decoding with and without them, taking turns, in this process.

``python -m tools.profile_lora`` makes adapters of random numbers for the model, and measures as many streams as there
are adapters: without one, all with one adapter, and each with its own.
"""

from __future__ import annotations

import argparse
import json
import queue
import tempfile
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from lmdeploy.paths import locate_model
from lmdeploy.turbomind.engine import Engine, EngineOutput
from tools.bench import arguments as flags
from tools.bench.report import machine
from tools.bench.stats import median
from tools.bench.turns import ratio, take_turns
from tools.bench.workload import EVERY_TOKEN

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EVERYTHING = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
PROMPT_LEN = 16


def write_adapter(directory: Path, model: Path, targets: tuple[str, ...], rank: int, seed: int) -> None:
    """Write an adapter of random numbers for a checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for file in model.glob("*.safetensors"):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118
                layer = name.removesuffix(".weight")
                if layer.rpartition(".")[2] not in targets or not name.endswith(".weight"):
                    continue
                outputs, inputs = weights.get_slice(name).get_shape()
                prefix = f"base_model.model.{layer}"
                tensors[f"{prefix}.lora_A.weight"] = (
                    torch.randn(rank, inputs, generator=generator).bfloat16() / inputs**0.5
                )
                tensors[f"{prefix}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator).bfloat16() / 64
    directory.mkdir(parents=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(targets)}
    (directory / "adapter_config.json").write_text(json.dumps(config))


def decode(engine: Engine, names: list[str | None], tokens: int) -> float:
    """Return the tokens a second of streams that run together, each with the adapter named."""
    config = GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
    outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
    before = engine.metrics()
    for index, name in enumerate(names):
        ids = [100 + 37 * index + token for token in range(PROMPT_LEN)]
        engine.submit(ids, config, outputs.put, stream=False, adapter_name=name)
    for _ in names:
        output = outputs.get()
        if output.error:
            raise RuntimeError(output.error)
    after = engine.metrics()
    # While decoding, streams wait for each other's tokens alone; prompts are not counted.
    seconds = after["later_token_seconds_total"] - before["later_token_seconds_total"]
    return len(names) * (after["later_tokens_total"] - before["later_tokens_total"]) / seconds


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.profile_lora", description=__doc__)
    parser.add_argument("model_path", nargs="?", default="", help="a checkpoint (default: the default model)")
    parser.add_argument("--streams", type=int, default=16, help="streams, and adapters (default: %(default)s)")
    parser.add_argument("--rank", type=int, default=16, help="of each layer (default: %(default)s)")
    parser.add_argument("--all-layers", action="store_true", help="adapt the MLPs too, not only q, k, v and o")
    parser.add_argument("--weight-bits", type=int, choices=(4, 8), help="of the base")
    parser.add_argument("--tokens", type=int, default=96, help="of a response (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="times each is measured (default: %(default)s)")
    args = parser.parse_args()
    model = locate_model(args.model_path)
    targets = EVERYTHING if args.all_layers else ATTENTION
    with tempfile.TemporaryDirectory() as folder:
        names = [f"adapter{index}" for index in range(args.streams)]
        for seed, name in enumerate(names):
            write_adapter(Path(folder) / name, model, targets, args.rank, seed)
        adapters = {name: str(Path(folder) / name) for name in names}
        config = TurbomindEngineConfig(weight_bits=args.weight_bits, adapters=adapters, **EVERY_TOKEN)
        engine = Engine(str(model), config)
        sides: dict[str, list[str | None]] = {
            "none": [None] * args.streams,
            "one adapter": [names[0]] * args.streams,
            "an adapter each": list(names),
            "one stream, none": [None],
            "one stream, one adapter": [names[0]],
        }
        for streams in sides.values():  # reads the adapters
            decode(engine, streams, 4)
        runs = {name: partial(decode, engine, streams, args.tokens) for name, streams in sides.items()}
        rates = take_turns(runs, args.rounds, lambda rate: f"{rate:.1f} tokens/s")
        engine.close()
    print(f"{machine()['cpu']}; rank {args.rank} on {', '.join(targets)}")
    for name, values in rates.items():
        base = "one stream, none" if name.startswith("one stream") else "none"
        print(f"{name}: {median(values):.1f} tokens/s, {ratio(values, rates[base]):.2f} of {base}")


if __name__ == "__main__":
    flags.run(main)
