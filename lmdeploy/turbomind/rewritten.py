"""Conversion of other checkpoint layouts to safetensors, once, into the cache."""

import hashlib
from pathlib import Path

from lmdeploy.made_once import made_once
from lmdeploy.paths import cache_root, model_name_of
from lmdeploy.turbomind import meta_llama, pickled_weights
from lmdeploy.turbomind.checkpoint_files import state_of
from lmdeploy.turbomind.safetensors_index import INDEX_NAME, weight_files

_FORMAT = 3  # of what is written; a change writes it again


def readable_checkpoint(model_dir: Path) -> Path:
    """Return a directory with the checkpoint as safetensors: itself, or its copy in the cache.

    Raises `CheckpointError` if it has to be rewritten and cannot be: files are missing, broken, or hold anything but
    tensors.
    """
    if weight_files(model_dir) or (model_dir / INDEX_NAME).is_file():
        return model_dir
    if meta_llama.is_meta_llama(model_dir):
        rewrite = meta_llama.rewrite
    elif pickled_weights.is_pickled(model_dir):
        rewrite = pickled_weights.rewrite
    else:
        return model_dir
    content = repr((_FORMAT, str(model_dir), state_of(model_dir)))
    folder = cache_root() / "rewritten" / hashlib.sha256(content.encode()).hexdigest()[:16]
    # Templates are chosen by the folder's name.
    return made_once(folder / model_name_of(model_dir), lambda made: rewrite(model_dir, made))
