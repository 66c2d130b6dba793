"""Engine directory: the files of a model that the C++ engine reads besides the checkpoint's safetensors files.

``python -m lmdeploy.turbomind.engine_dir PATH`` prints the engine directory of a model. The files are
described in docs/internals/interfaces.md. A directory in the cache is either whole or absent, and any number of
processes may ask for it at once: one writes it, the others wait.
"""

import functools
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.made_once import made_once
from lmdeploy.model_metadata.end_tokens import end_tokens
from lmdeploy.model_metadata.pooling import write_pooling
from lmdeploy.model_metadata.score_head import write_score_head
from lmdeploy.model_metadata.task_adapters import write_task_adapters
from lmdeploy.model_metadata.token_heads import write_token_heads
from lmdeploy.outside_links import reject_outside_links
from lmdeploy.paths import cache_root, locate_model, model_name_of, workspace_engine_dir
from lmdeploy.pytorch.description import WORKER_FILE, describe_for_worker, write_worker_file
from lmdeploy.pytorch.text_part.described import TEXT_PART, describe_text_part
from lmdeploy.turbomind.checkpoint_files import copy_texts, state_of
from lmdeploy.turbomind.manifest import Manifest
from lmdeploy.turbomind.rewritten import readable_checkpoint
from lmdeploy.turbomind.safetensors_index import linked_gguf_files, read_files
from lmdeploy.turbomind.spec import ModelSpec
from lmdeploy.version import __version__
from lmdeploy.vl.constants import VISION_FILE

__all__ = ["CheckpointError", "EngineDir", "UnsupportedModelError", "resolve", "write_engine_dir"]

logger = logging.getLogger(__name__)

_NAMES = {"turbomind": "TurboMind", "pytorch": "PyTorch"}
# The code that decides what an engine directory holds, in this package.
_WRITERS = (
    "turbomind/**/*.py", "pytorch/description.py", "pytorch/text_part/*.py", "pytorch/served_by_transformers.py",
    "pytorch/configurations/*.py",
    "pytorch/models/*.py", "token_bytes.py", "tokenizer.py", "tokenizer_readers/*.py", "templates/matching.py",
    "templates/jinja.py", "templates/chosen.py", "templates/older_clients.py", "model_metadata/*.py",
    "stored_rows.py",
)  # fmt: skip


@dataclass(frozen=True)
class EngineDir:
    """An engine directory and the spec in it."""

    path: Path
    spec: ModelSpec

    @property
    def backend(self) -> str:
        """The engine that runs it: ``turbomind`` or ``pytorch``."""
        return "pytorch" if (self.path / WORKER_FILE).is_file() else "turbomind"

    @property
    def vision_checkpoint(self) -> Path | None:
        """The checkpoint with the vision tower; None: it reads text only."""
        file = self.path / VISION_FILE
        # Relative to this folder where the checkpoint was copied into it.
        return self.path / json.loads(file.read_text(encoding="utf-8"))["checkpoint"] if file.is_file() else None


def resolve(
    # A Hugging Face directory, an engine directory, a workspace of ``lmdeploy convert``, the name of a Hugging Face
    # repository, or ``""`` for the default model
    model_path: str | Path,
    # Version and cache folder, for a Hugging Face repository only
    revision: str | None = None,
    download_dir: str | None = None,
    # The engine that is to run it: ``turbomind``; ``pytorch``, or TurboMind if only that can; None: TurboMind if it
    # can, else PyTorch
    backend: str | None = None,
    custom_module_map: str = "",  # classes that run models in the PyTorch engine, as settings have them
) -> EngineDir:
    """Return the engine directory of a model, writing it into the cache when it is not there.

    Raises `UnsupportedModelError` if the engine cannot run this model, and `CheckpointError` if there is no such model,
    or it is missing files, truncated, half-written or contradicts itself.
    """
    directory = locate_model(str(model_path), revision, download_dir)
    reject_outside_links(directory)
    try:
        return _resolved(directory, backend, custom_module_map)
    except RecursionError as error:
        raise CheckpointError(directory, ["one of its JSON files or its template is nested too deeply"]) from error


def _resolved(directory: Path, backend: str | None, custom_module_map: str) -> EngineDir:
    for candidate in (directory, workspace_engine_dir(directory)):
        if (candidate / "spec.json").is_file():
            return _require_backend(_open_checked(candidate), backend)
    readable_checkpoint(directory)  # its copy, if it needs one, may have been removed
    requested = backend or "turbomind"
    try:
        return _cached(directory, requested, custom_module_map)
    except UnsupportedModelError as error:
        if backend == "turbomind" or (backend and custom_module_map):
            raise
        other, hidden = ("turbomind", ()) if backend else ("pytorch", (CheckpointError,))
        try:
            engine = _cached(directory, other, custom_module_map)
        except (UnsupportedModelError, *hidden):
            raise error from None
        logger.warning("%s; the %s engine runs it", error, _NAMES[other])
        return engine


def write_engine_dir(
    model_dir: Path, model_name: str, target: Path, backend: str = "turbomind", custom_module_map: str = ""
) -> EngineDir:
    """Write the engine directory of a checkpoint into the empty or missing folder ``target``.

    Raises `UnsupportedModelError` or `CheckpointError` as :func:`resolve`.
    """
    from lmdeploy.model import choose_templates
    from lmdeploy.tokenizer import Tokenizer
    from lmdeploy.turbomind.checkpoint import describe, read_config

    model_dir = readable_checkpoint(model_dir)
    manifest = None
    if backend == "pytorch":
        if linked_gguf_files(model_dir):
            raise UnsupportedModelError("GGUF files run on the engine turbomind alone")
        seeing = describe_text_part(model_dir, model_name, target / TEXT_PART, custom_module_map)
        spec = seeing or describe_for_worker(model_dir, model_name, custom_module_map)
    else:
        description = describe(model_dir, model_name)
        spec, manifest = description.spec, description.manifest
    config = read_config(model_dir)
    if spec.encoder is None and config.get("is_causal") is False:
        logger.warning("%s: config.json: is_causal false is for embeddings; text is generated causally", model_dir)
    tokenizer = Tokenizer(str(model_dir))
    ends = end_tokens(tokenizer, spec.vocab_size)
    for end in ends:
        if end.ignored:
            logger.warning("%s: %s: token %d ends no response: %s", model_dir, end.sources[0], end.id, end.ignored)
    spec = replace(spec, eos_token_ids=tuple(end.id for end in ends if not end.ignored))
    copies = target / "tokenizer"
    copy_texts(model_dir, copies)
    tokenizer.store(copies)
    choose_templates(model_dir, tokenizer).write(copies)
    # Tokens beyond the embedding, as some are published with for images or padding, are for messages alone.
    known = max(spec.vocab_size, min(tokenizer.vocab_size, 2 * spec.vocab_size))
    tokenizer.token_bytes(known).write(target / "token_bytes.bin")
    if manifest is None:
        write_worker_file(Path(TEXT_PART) if spec.images else model_dir, config, target)
    else:
        (target / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    write_pooling(model_dir, target, tokenizer, spec.encoder is not None)
    if spec.encoder is not None:
        write_token_heads(model_dir, target, tokenizer, spec.hidden_size)
    write_task_adapters(model_dir, config, target)
    write_score_head(model_dir, model_name, tokenizer, target, spec.encoder is not None)
    if spec.images is not None:
        (target / VISION_FILE).write_text(json.dumps({"checkpoint": str(model_dir)}), encoding="utf-8")
    (target / "spec.json").write_text(spec.to_json(), encoding="utf-8")
    return EngineDir(target, spec)


def _cached(model_dir: Path, backend: str, custom_module_map: str = "") -> EngineDir:
    """Return an engine directory in the cache, writing it when it is not there."""
    fingerprint = _fingerprint(model_dir, backend, custom_module_map)
    name = model_name_of(model_dir)
    cached = cache_root() / "engines" / f"{name}-{fingerprint}"
    made_once(cached, lambda made: write_engine_dir(model_dir, name, made, backend, custom_module_map))
    return _open(cached)


def _require_backend(engine: EngineDir, backend: str | None) -> EngineDir:
    if backend is not None and engine.backend != backend:
        raise CheckpointError(engine.path, [f"it was made for the engine {engine.backend}, not for {backend}"])
    return engine


def _fingerprint(model_dir: Path, backend: str, custom_module_map: str) -> str:
    """Return a hash that changes when the checkpoint moves or any of its files changes size or time."""
    runs_in = (sys.executable, _map_state(custom_module_map)) if backend == "pytorch" else ""  # workers start with it
    content = repr((writer_hash(), __version__, str(model_dir), state_of(model_dir), backend, runs_in))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _map_state(custom_module_map: str) -> object:
    """Return a value that changes with the user's classes, or with their reading of a configuration."""
    file = Path(custom_module_map)
    is_file = bool(custom_module_map) and not custom_module_map.lstrip().startswith("{") and file.is_file()
    return (str(file.resolve()), state_of(file.resolve().parent)) if is_file else custom_module_map


@functools.cache
def writer_hash() -> str:
    """Return a hash of the code that writes engine directories, so that a change of it writes cached ones again."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for source in _WRITERS:
        for file in sorted(package.glob(source)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _open(directory: Path) -> EngineDir:
    try:
        return EngineDir(directory, ModelSpec.from_json((directory / "spec.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(directory, [f"spec.json cannot be used ({error})"]) from error


def _open_checked(directory: Path) -> EngineDir:
    """Open an engine directory that was written some time ago, and check that its files and weights are still there."""
    engine = _open(directory)
    needed = ["token_bytes.bin", "tokenizer", *(["manifest.json"] if engine.backend == "turbomind" else [])]
    missing = [name for name in needed if not (directory / name).exists()]
    if missing:
        raise CheckpointError(directory, [f"{name} is missing" for name in missing])
    if engine.backend == "pytorch":
        return engine
    try:
        manifest = Manifest.from_json((directory / "manifest.json").read_text(encoding="utf-8"), directory)
        loads = set(manifest.loads())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(directory, [f"manifest.json cannot be used ({error!r})"]) from error
    index = read_files(manifest.files)
    problems = list(index.problems)
    if not index.has_unread_files:
        found = {(info.file, name, info.offset) for name, info in index.tensors.items()}
        names = sorted({name for _, name, _ in loads - found})
        problems += [
            f"tensor {name} {'is elsewhere now: convert the model again' if name in index.tensors else 'is missing'}"
            for name in names
        ]
    if problems:
        raise CheckpointError(directory, problems)
    return engine


def main(arguments: list[str]) -> int:
    """Print the engine directory of the model named by the only argument; one line on stderr and 1 on failure."""
    if len(arguments) != 1:
        print("usage: python -m lmdeploy.turbomind.engine_dir PATH", file=sys.stderr)
        return 1
    return print_directory(lambda: resolve(arguments[0]).path)


def print_directory(find: Callable[[], Path]) -> int:
    """Print what ``find`` returns and return 0; one line on stderr and 1 on failure."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        print(find())
    except (OSError, ValueError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
