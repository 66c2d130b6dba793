"""The tests' models take their tokenizer from the default model; without a network, a random one stands in."""

from __future__ import annotations

from lmdeploy.paths import default_model_dir
from tools.bench import random_model
from tools.gpu_check.work.context import Context


def main(context: Context) -> None:
    """Write the stand-in where the default model is not there."""
    directory = default_model_dir()
    if (directory / "tokenizer.json").exists():
        print(f"there is one: {directory}")
    else:
        print(random_model.write("tiny", directory))
