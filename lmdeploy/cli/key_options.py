"""Options for keys. Every user of a machine can read command lines, so a file or the environment may hold keys too."""

from __future__ import annotations

import argparse
import os
from typing import Any

from lmdeploy.serve.keys import read_keys, split_keys, variable_of

_Target = argparse.ArgumentParser | argparse._ArgumentGroup


def add_keys(parser: _Target, option: str, what: str) -> None:
    """Add an option for keys, one for a file of them, and the environment variable; the keys of all three count.

    ``option``: without hyphens in front, for example ``api-keys``. ``what``: the keys, for the help.
    """
    dest, variable = option.replace("-", "_"), variable_of(option)
    default = list(split_keys([os.environ.get(variable, "")]))
    parser.add_argument(
        f"--{option}",
        nargs="*",
        action=_Keys,
        default=default,
        metavar="KEY",
        help=f"{what}. Other users of this machine can read them in the process list: prefer --{option}-file or the "
        f"environment variable {variable}.",
    )
    parser.add_argument(
        f"--{option}-file",
        dest=dest,
        action=_KeysFile,
        default=default,
        metavar="FILE",
        help="File with one key per line.",
    )


def add_key(parser: _Target, option: str, what: str) -> None:
    """Add an option for one key, and its environment variable; the option wins."""
    variable = variable_of(option)
    parser.add_argument(
        f"--{option}",
        default=os.environ.get(variable) or None,
        metavar="KEY",
        help=f"{what} (default: the environment variable {variable}, which other users cannot read).",
    )


class _Keys(argparse.Action):
    """Adds the keys of the command line."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        keys = split_keys(values)
        if not keys:  # an unset variable of a shell, for example: the server would be open to everybody
            parser.error(f"{option}: expected at least one key; leave the option out for a server without keys")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *keys])


class _KeysFile(argparse.Action):
    """Adds the keys of a file."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        try:
            keys = read_keys(values)
        except ValueError as error:
            parser.error(f"{option}: {error}")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *keys])
