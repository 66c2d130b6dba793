"""`lmdeploy list`: the built-in chat templates, the supported architectures, and models that were pulled."""

import argparse
from typing import TYPE_CHECKING

from lmdeploy.cli.parser import Mention

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "list",
        help="List chat templates, architectures and pulled models.",
        description="List chat templates, architectures and pulled models.",
    )
    word = "has no effect: there is one list"
    parser.add_argument("--engine", action=Mention, word=word, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the lists; return the exit status."""
    from lmdeploy.hub.pulled import pulled_models
    from lmdeploy.model import MODELS
    from lmdeploy.paths import pulled_records
    from lmdeploy.turbomind.families import families
    from lmdeploy.turbomind.text_part import ARCHITECTURES

    print("The supported chat template names are:", *MODELS.names(), sep="\n")
    aliases = (f"{alias} = {name}" for alias, name in sorted(MODELS.aliases.items()))
    print("\nOther names of the same, accepted wherever a template is named:", *aliases, sep="\n")
    print("\nThe supported architectures are:", *sorted((*families(), *ARCHITECTURES)), sep="\n")
    pulled = [f"{model.name}  {model.size / 1e9:.2f} GB  {model.path}" for model in pulled_models(pulled_records())]
    print("\nModels that were pulled (`lmdeploy pull`, `lmdeploy rm`):", *(pulled or ["none"]), sep="\n")
    return 0
