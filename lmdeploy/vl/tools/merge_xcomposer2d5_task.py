"""``python -m lmdeploy.vl.tools.merge_xcomposer2d5_task MODEL OUTPUT --task web``: an XComposer2.5 for one task.

The checkpoint of InternLM-XComposer2.5 has low-rank matrices of two tasks alongside each matrix of its decoder, which
its other answers do not use. They are added to the matrix; those of rows of images stay apart.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from lmdeploy.errors import CheckpointError
from lmdeploy.paths import locate_model
from lmdeploy.turbomind.rewritten import readable_checkpoint
from lmdeploy.turbomind.safetensors_index import read_checkpoint

TASKS = MappingProxyType({"web": ("web",), "write": ("sft", "dpo")})
_LOW_RANK = re.compile(r"(.+)\.lora_(\w+)_([AB])\.weight")


def merge(model: Path, output: Path, task: str) -> int:
    """Write a checkpoint with a task's matrices in its weights, and return how many it has added.

    Raises `CheckpointError` if ``output`` has files, or the checkpoint has no such matrices, or one without the other.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    if output.exists() and any(output.iterdir()):
        raise CheckpointError(output, ["is not empty"])
    source = readable_checkpoint(model)
    index = read_checkpoint(source)
    pairs = _pairs_of(source, list(index.tensors), TASKS[task])
    output.mkdir(parents=True, exist_ok=True)
    weights: dict[str, str] = {}
    size = 0
    for file in index.files:
        kept = {}
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 (the file is no mapping)
                if _LOW_RANK.fullmatch(name):
                    continue
                whole = content.get_tensor(name)
                for down, up in pairs.get(name, ()):
                    parts = [index.tensor(part).float() for part in (up, down)]
                    whole = (whole.float() + parts[0] @ parts[1]).to(whole.dtype)
                kept[name] = whole.contiguous()
        if not kept:
            continue
        save_file(kept, output / file.name, {"format": "pt"})
        weights |= dict.fromkeys(kept, file.name)
        size += sum(tensor.numel() * tensor.element_size() for tensor in kept.values())
    listed = {"metadata": {"total_size": size}, "weight_map": weights}
    (output / "model.safetensors.index.json").write_text(json.dumps(listed, indent=1), encoding="utf-8")
    for file in model.iterdir():
        if file.is_file() and not file.name.endswith((".safetensors", ".bin", ".index.json")):
            shutil.copyfile(file, output / file.name)
    return sum(len(found) for found in pairs.values())


def _pairs_of(checkpoint: Path, names: Sequence[str], kinds: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return the matrices that are added to each weight, down and up."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    problems = []
    for name in sorted(names):
        match = _LOW_RANK.fullmatch(name)
        if match is None or match[2] not in kinds or match[3] != "A":
            continue
        up = f"{match[1]}.lora_{match[2]}_B.weight"
        problems += [f"tensor {other} is missing" for other in (up, f"{match[1]}.weight") if other not in names]
        pairs.setdefault(f"{match[1]}.weight", []).append((name, up))
    if not pairs:
        problems = [f"has no low-rank matrices named lora_{kind}_A" for kind in kinds]
    if problems:
        raise CheckpointError(checkpoint, problems)
    return pairs


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, or 1 and on standard error the reason."""
    parser = argparse.ArgumentParser(prog="python -m lmdeploy.vl.tools.merge_xcomposer2d5_task", description=__doc__)
    parser.add_argument("model", help="folder or name of the model")
    parser.add_argument("output", type=Path, help="folder of the merged model, new or empty")
    parser.add_argument("--task", choices=tuple(TASKS), required=True)
    given = parser.parse_args(arguments)
    try:
        count = merge(locate_model(given.model), given.output, given.task)
    except (CheckpointError, OSError) as error:
        print(f"nothing was merged: {error}", file=sys.stderr)
        return 1
    print(f"{count} pairs of matrices of {given.task} are in the weights of {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
