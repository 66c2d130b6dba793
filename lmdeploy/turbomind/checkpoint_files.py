"""Auxiliary files of a checkpoint, and its fingerprint."""

import json
import shutil
from pathlib import Path

from lmdeploy.vl.constants import VISION_FILE

_TEXTS = (
    "config.json", "generation_config.json", "*processor_config.json", "tokenizer*", "special_tokens_map.json",
    "added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.tiktoken", "*.model",
)  # fmt: skip
_MODULES = (
    "modules.json", "config_sentence_transformers.json", "sentence_*config.json", "*_linear.pt", "[0-9]*_*/config.json",
    "[0-9]*_*/model.safetensors", "[0-9]*_*/pytorch_model.bin",
)  # fmt: skip
_COPY = "checkpoint"
_OTHER_WEIGHTS = (".bin", ".pth", ".pt", ".msgpack", ".h5", ".onnx")  # the same again, as publishers add them


def copy_texts(model_dir: Path, target: Path) -> None:
    """Copy a checkpoint's tokenizer, chat template and config files."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in _TEXTS:
        for file in model_dir.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)


def copy_modules(model_dir: Path, target: Path) -> None:
    """Copy what sentence-transformers has alongside a model: its steps, and layers for vectors and tokens."""
    for pattern in _MODULES:
        for file in model_dir.glob(pattern):
            copy = target / file.relative_to(model_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def move_in(model_dir: Path, target: Path) -> None:
    """Copy a checkpoint into its engine directory, which then can be moved to another machine.

    ``model_dir``: the checkpoint that ``target`` was written for. ``target``: the engine directory. Its manifest must
    read no other file than those of ``model_dir``.
    """
    copy = target / _COPY
    copy.mkdir()
    for name, _, _ in state_of(model_dir):
        if not name.endswith(_OTHER_WEIGHTS):
            shutil.copyfile(model_dir / name, copy / name)
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"] = [f"{_COPY}/{Path(file).relative_to(model_dir.absolute())}" for file in manifest["files"]]
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    if (target / VISION_FILE).is_file():
        (target / VISION_FILE).write_text(json.dumps({"checkpoint": _COPY}), encoding="utf-8")


def state_of(model_dir: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of each file of a checkpoint, in order."""
    stats = []
    for file in sorted(model_dir.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            status = file.stat()
            stats.append((file.name, status.st_size, status.st_mtime_ns))
    return stats
