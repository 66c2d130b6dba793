"""The fenced blocks of documents, and the commands in them."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# Guides whose commands need more than the server of these tests: other models, adapters, a browser. Only parsed.
_NEED_MORE = {
    "batches",
    "chat-page",
    "chat-templates",
    "gguf",
    "lora",
    "multi-model",
    "own-models",
    "speculative-decoding",
}
GUIDES = sorted(path for path in (ROOT / "docs" / "guides").glob("*.md") if path.stem not in _NEED_MORE)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`((?:\.venv/bin/)?(?:lmdeploy|python|make) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    """A line of a block, or of a text between backticks."""

    document: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words as a shell makes them, without what is said after ``#`` or sent elsewhere."""
        return shlex.split(self.text, comments=True)


def blocks(document: Path, language: str) -> list[str]:
    """Return the blocks of a language; the empty one: those that name none."""
    return [text for found, text in _BLOCK.findall(document.read_text(encoding="utf-8")) if found == language]


def commands(document: Path, *languages: str) -> list[Command]:
    """Return the lines of blocks; what ends in a backslash continues in the next line."""
    name = document.relative_to(ROOT).as_posix()
    lines = [
        line.strip()
        for language in languages
        for block in blocks(document, language)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [Command(name, line) for line in lines if line and not line.startswith("#")]


def inline_commands(document: Path) -> list[Command]:
    """Return what is between backticks and begins as a command of ours."""
    name = document.relative_to(ROOT).as_posix()
    return [Command(name, text) for text in _INLINE.findall(document.read_text(encoding="utf-8"))]
