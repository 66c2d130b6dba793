"""The engine directory of a head: spec and manifest, over its own checkpoint's files and those of its model."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.made_once import made_once
from lmdeploy.paths import cache_root, locate_model
from lmdeploy.speculative import EAGLE_METHODS, MTP_METHODS
from lmdeploy.turbomind.checkpoint_files import state_of
from lmdeploy.turbomind.engine_dir import writer_hash
from lmdeploy.turbomind.manifest import Load, Manifest, find_problems, walk
from lmdeploy.turbomind.rewritten import readable_checkpoint
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex, read_checkpoint, read_files
from lmdeploy.turbomind.spec import ModelSpec

if TYPE_CHECKING:
    from lmdeploy.turbomind.heads.checkpoints import Head

# Of EAGLE heads; what follows from config.json and d2t, and what trainers leave.
_UNREAD = ("d2t", "t2d", "rotary_emb.inv_freq", "embed_tokens.weight")


def find_head(target: Path, method: str, model: str = "", download_dir: str | None = None) -> Path:
    """Return the engine directory of a head, writing it into the cache when it is not there.

    Raises `UnsupportedModelError` if the engine cannot run it, and `CheckpointError` if it is missing, broken, or does
    not fit its model. ``target``: engine directory of the model it drafts for. ``method``: one of ``MTP_METHODS`` or
    ``EAGLE_METHODS``. ``model``: the head's folder, or the name of its Hugging Face repository; ``""`` with the first,
    whose head is in the model's own checkpoint. ``download_dir``: where repositories are kept.
    """
    if not (target / "manifest.json").is_file():
        raise UnsupportedModelError(f"method {method} is for models that the TurboMind engine runs")
    directory = target
    if method in EAGLE_METHODS:
        directory = readable_checkpoint(locate_model(model, None, download_dir))
    content = repr((writer_hash(), method, str(target), state_of(target), str(directory), state_of(directory)))
    folder = cache_root() / "engines" / f"head-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    made_once(folder, lambda made: _write(target, method, directory, made))
    return folder


def _write(target: Path, method: str, directory: Path, made: Path) -> None:
    from lmdeploy.turbomind.heads.checkpoints import eagle_head, mtp_head

    base = ModelSpec.from_json((target / "spec.json").read_text(encoding="utf-8"))
    manifest = Manifest.from_json((target / "manifest.json").read_text(encoding="utf-8"), target)
    text_spec = replace(base, images=None)
    if method in MTP_METHODS:
        if manifest.weight_format != "hf":
            raise UnsupportedModelError(
                f"a quantized head is not supported: the checkpoint's weights are {manifest.weight_format}"
            )
        index = read_files(manifest.files)
        head = mtp_head(text_spec, index)
    else:
        index = _behind(manifest.files, read_checkpoint(directory))
        head = eagle_head(text_spec, directory, index, method)
    problems = find_problems(head.tensors, index)
    if method in EAGLE_METHODS:
        problems += [f"tensor {name} is unknown to the method {method}" for name in _unread(head, index)]
    if problems:
        raise CheckpointError(directory, problems)
    built = Manifest.build(head.tensors, index)
    shared = {name: _of_target(manifest, source) for name, source in head.shared.items()}
    whole = replace(built, tensors={**built.tensors, **shared}, weight_format=manifest.weight_format)
    made.mkdir(parents=True, exist_ok=True)
    (made / "manifest.json").write_text(whole.to_json(), encoding="utf-8")
    (made / "spec.json").write_text(head.spec.to_json(), encoding="utf-8")


def _behind(files: tuple[Path, ...], index: SafetensorsIndex) -> SafetensorsIndex:
    """Return the index with these files in front of its own."""
    tensors = {name: replace(info, file=info.file + len(files)) for name, info in index.tensors.items()}
    return replace(index, files=[*files, *index.files], tensors=tensors)


def _of_target(manifest: Manifest, name: str) -> Mapping[str, Any]:
    """Return the expression of one of the model's tensors; its output layer may be its embedding."""
    if name == "lm_head.weight" and name not in manifest.tensors:
        name = "token_embedding"
    return manifest.tensors[name]


def _unread(head: "Head", index: SafetensorsIndex) -> list[str]:
    read = {part.name for tensor in head.tensors.values() for part in walk(tensor) if isinstance(part, Load)}
    return sorted(name for name in set(index.tensors) - read if not name.endswith(_UNREAD))
