"""Validation of a command without running it, by the program's own parser."""

import argparse
import contextlib
import io
import re
import runpy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from lmdeploy.cli.main import make_parser
from tests.docs.blocks import ROOT

# lm-eval's arguments: tests/clients/test_lm_eval.py.
_READ_ELSEWHERE = {"lmdeploy.evaluation"}
_VARIABLE = re.compile(r"[A-Z_]+=")


class _ParsedError(Exception):
    """A tool has read its arguments."""


def lmdeploy(words: list[str]) -> str:
    """Return why ``lmdeploy`` would not take arguments; empty: it would."""
    with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()):
        try:
            make_parser().parse_everything(words)
        except SystemExit as stopped:
            return "" if stopped.code == 0 else stderr.getvalue()
    return ""


def tool(path: str, words: list[str]) -> str:
    """Return why a tool of ours would not take arguments: it is started, and stopped after its parser."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self: argparse.ArgumentParser, *given: Any, **names: Any) -> None:
        parse(self, *given, **names)
        raise _ParsedError

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", parse_and_stop),
        mock.patch.object(sys, "argv", [path, *words]),
        mock.patch.object(sys, "path", [str(ROOT), *sys.path]),
        contextlib.redirect_stderr(io.StringIO()) as stderr,
    ):
        try:
            runpy.run_path(str(ROOT / path), run_name="__main__")
        except _ParsedError:
            return ""
        except SystemExit as stopped:
            return stderr.getvalue() or f"ended with {stopped.code}"
    return "it reads no arguments"


@cache
def _make() -> tuple[set[str], set[str]]:
    """Return the targets and variables of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE)
    return set(targets), set(re.findall(r"^([A-Z_]+) *[?:]?=", text, re.MULTILINE))


def make(words: list[str]) -> str:
    """Return which targets or variables the Makefile does not have."""
    targets, variables = _make()
    missing = [word for word in words if not _VARIABLE.match(word) and word not in targets]
    missing += [word for word in words if _VARIABLE.match(word) and word.split("=")[0] not in variables]
    return f"the Makefile has no {', '.join(missing)}" if missing else ""


def cmake(words: list[str]) -> str:
    """Return which options CMakeLists.txt does not have."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    names = [word[2:].split("=")[0] for word in words if word.startswith("-D")]
    missing = [name for name in names if name not in text and not name.startswith(("CMAKE_", "Python_"))]
    return f"CMakeLists.txt has no {', '.join(missing)}" if missing else ""


def pip(words: list[str]) -> str:
    """Return which extras of this package do not exist."""
    extras = re.findall(r"^([a-z]+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    named = [
        name for word in words for group in re.findall(r"^lmdeploy-triton\[(.*)\]", word) for name in group.split(",")
    ]
    missing = [name for name in named if name not in extras]
    if any(re.match(r"lmdeploy($|[^-\w])", word) for word in words):
        return "on the public index lmdeploy is upstream's distribution; ours is lmdeploy-triton"
    return f"there is no extra {', '.join(missing)}" if missing else ""


def _python(words: list[str]) -> str:
    if words[0] == "-c":
        compile(words[1], "-c", "exec")
        return ""
    if words[0] != "-m":
        return tool(words[0], words[1:])
    if words[1] == "lmdeploy":
        return lmdeploy(words[2:])
    if words[1] in _READ_ELSEWHERE:
        return ""
    module = words[1].replace(".", "/")
    file = f"{module}/__main__.py" if (ROOT / module).is_dir() else f"{module}.py"
    return tool(file, words[2:]) if "argparse" in (ROOT / file).read_text(encoding="utf-8") else ""


_PROGRAMS: dict[str, Callable[[list[str]], str]] = {
    "lmdeploy": lmdeploy,
    "python": _python,
    "make": make,
    "cmake": cmake,
    "pip": pip,
}


def program(word: str) -> str:
    """Return the name of a program, wherever it is."""
    return Path(word).name


def rejection(words: list[str]) -> str | None:
    """Return why a command would be refused, empty if it would not; None: it is no program of ours."""
    while words and _VARIABLE.match(words[0]):
        words = words[1:]
    for separator in ("|", "&&", ">", "&"):
        if separator in words:
            words = words[: words.index(separator)]
    check = _PROGRAMS.get(program(words[0])) if words else None
    return None if check is None else check(words[1:])
