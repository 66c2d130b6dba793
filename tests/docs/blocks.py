"""The fenced blocks of documents, and the commands in them."""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# Pages that `make test` runs; `make test-all` runs all.
SAMPLE = [ROOT / "docs" / f"{name}.md" for name in ("get-started/quickstart", "guides/serving")]
_BLOCK = re.compile(r"((?:^<!-- [^\n]*-->\n)*)^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Comments before a block, which readers do not see. A reason in `not run` is of the whole block, or of the commands
# that begin with the text in parentheses; `run` is a command for what the page presumes; `file` is the block's name.
_NOT_RUN = re.compile(r"<!-- not run(?: \((.+?)\))?: (.+?) -->")
_RUN = re.compile(r"<!-- run: (.+?) -->")
_FILE = re.compile(r"<!-- file: (.+?) -->")
_INLINE = re.compile(r"(?<!`)`((?:\.venv/bin/)?(?:lmdeploy|python|make) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Step:
    """A command of a shell, a whole example in Python, or a file.

    ``document``: the page, relative to the checkout. ``language``: of its block; of a file: ``file NAME``. ``block``:
    the number of its block in the page. ``text``: as written. ``not_run``: why it is not run; empty: it is.
    """

    document: str
    language: str
    block: int
    text: str
    not_run: str = ""

    @property
    def words(self) -> list[str]:
        """The words as a shell makes them, without what is said after ``#`` or sent elsewhere."""
        return shlex.split(self.text.replace("\\\n", " "), comments=True)


def name_of(document: Path) -> str:
    """Return the path of a page from the checkout."""
    return os.path.relpath(document, ROOT)


def blocks(document: Path, language: str) -> list[str]:
    """Return the blocks of a language; the empty one: those that name none."""
    return [text for _, found, text in _BLOCK.findall(document.read_text(encoding="utf-8")) if found == language]


def steps(document: Path) -> list[Step]:
    """Return the commands, the Python and the files of a page, in their order."""
    found = []
    for number, (before, language, text) in enumerate(_BLOCK.findall(document.read_text(encoding="utf-8"))):
        found += [Step(name_of(document), "bash", number, command) for command in _RUN.findall(before)]
        found += [Step(name_of(document), f"file {name}", number, text) for name in _FILE.findall(before)]
        if language not in ("bash", "python") or _FILE.search(before):
            continue
        reasons = _NOT_RUN.findall(before)
        for part in _commands(text) if language == "bash" else [text]:
            not_run = next((reason for beginning, reason in reasons if part.startswith(beginning)), "")
            found.append(Step(name_of(document), language, number, part, not_run))
    return found


def inline_commands(document: Path) -> list[Step]:
    """Return the commands of ours between backticks."""
    return [Step(name_of(document), "", 0, text) for text in _INLINE.findall(document.read_text(encoding="utf-8"))]


def _commands(block: str) -> Iterator[str]:
    """Yield the commands of a block, each with all of its lines; no comments that have lines of their own."""
    command = ""
    for line in block.splitlines(keepends=True):
        command += line
        if _is_whole(command):
            if command.strip() and not command.startswith("#"):
                yield command.strip()
            command = ""
    assert not command, f"the last command has no end: {command}"


def _is_whole(command: str) -> bool:
    if command.endswith("\\\n"):
        return False
    if (document := re.search(r"<<\s*'?(\w+)'?.*\n", command)) is not None:
        return command.endswith(f"\n{document[1]}\n")
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quotation continues
        return False
    return True
