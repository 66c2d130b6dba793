"""`lmdeploy list`: the built-in chat templates, the supported architectures, and models that were made or pulled."""

import argparse
import dataclasses
from typing import TYPE_CHECKING

from lmdeploy.cli.parser import DeprecatedOption

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "list",
        help="List chat templates, architectures and models in the cache.",
        description="List chat templates, architectures and models in the cache.",
    )
    word = "has no effect: there is one list"
    parser.add_argument("--engine", action=DeprecatedOption, word=word, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the lists; return the exit status."""
    from lmdeploy.hub.pulled import pulled_models
    from lmdeploy.model import MODELS
    from lmdeploy.paths import cached_models, pulled_records
    from lmdeploy.turbomind.served_architectures import served_architectures

    print("The supported chat template names are:", *MODELS.names(), sep="\n")
    aliases = (f"{alias} = {name}" for alias, name in sorted(MODELS.aliases.items()))
    print("\nOther names of the same, accepted wherever a template is named:", *aliases, sep="\n")
    print("\nThe supported architectures, and what their logits are compared with in tests:")
    titles = ("architecture", "engine", "formats", "tested")
    table = [titles, *map(dataclasses.astuple, served_architectures())]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print("About 130 more are served by the PyTorch engine, through transformers (docs/reference/pytorch-engine.md).")
    cached = [f"{path.name}  {path}" for path in cached_models()]
    print("\nModels that were made (`make model`):", *(cached or ["none"]), sep="\n")
    pulled = [f"{model.name}  {model.size / 1e9:.2f} GB  {model.path}" for model in pulled_models(pulled_records())]
    print("\nModels that were pulled (`lmdeploy pull`, `lmdeploy rm`):", *(pulled or ["none"]), sep="\n")
    return 0
