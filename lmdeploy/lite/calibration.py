"""Calibration data: from files, from a data set, or the one that comes along.

That is the Declaration of Independence (1776) and the Constitution of the United States (1787 to 1992), in the public
domain and part of this package, and after them what Python itself brings: the language reference
(``pydoc_data.topics``) and modules of its standard library, prose and code.
"""

import gzip
import hashlib
import importlib
import importlib.util
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.distribution import install_command

if TYPE_CHECKING:
    from lmdeploy.tokenizer import Tokenizer

DEFAULT_TEXT = Path(__file__).parent / "calibration.txt.gz"
# With many words and some code; they were there in Python 3.10 and are in 3.14.
_MODULES = (
    "argparse", "ast", "calendar", "cmd", "codecs", "configparser", "contextlib", "csv", "datetime", "decimal",
    "difflib", "doctest", "enum", "fractions", "functools", "gettext", "heapq", "imaplib", "inspect", "ipaddress",
    "locale", "mailbox", "optparse", "os", "pathlib", "pickle", "pickletools", "platform", "pydoc", "random", "shutil",
    "smtplib", "socketserver", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading",
    "tokenize", "trace", "turtle", "typing", "zipfile",
)  # fmt: skip
_SUFFIXES = (".txt", ".json", ".jsonl")
# Arguments of `datasets.load_dataset`, and the column with the text.
_DATA_SETS: dict[str, tuple[dict[str, Any], str]] = {
    "ptb": ({"path": "ptb_text_only", "name": "penn_treebank", "split": "train"}, "sentence"),
    "wikitext2": ({"path": "wikitext", "name": "wikitext-2-raw-v1", "split": "train"}, "text"),
    "c4": (
        {"path": "allenai/c4", "data_files": {"train": "en/c4-train.00000-of-01024.json.gz"}, "split": "train"},
        "text",
    ),
    "pileval": ({"path": "mit-han-lab/pile-val-backup", "split": "validation"}, "text"),
}
_OTHER_NAMES = {"ptb-new": "ptb", "c4-new": "c4"}  # that LMDeploy takes
_LARGEST_TEXT = 64 << 20  # characters; more than any sensible number of samples needs
_SHORTEST_SAMPLE = 32  # tokens; a shorter rest says little


def load_text(source: str | None) -> str:
    """Return a calibration text.

    Raises `ValueError` if there is no such file or data set, or the file holds something else; names the default.
    ``source``: a text file; a ``.json`` file with a list, or a ``.jsonl`` file with lines, of strings or of objects
    with a ``text``; each of these also after ``.gz``; a folder with such files, which are read by name; one of ``ptb``,
    ``wikitext2``, ``c4``, ``pileval``, which need the package ``datasets``; None: the texts that come along.
    """
    if source is None:
        return built_in_text()
    path = Path(source).expanduser()
    try:
        if path.is_file():
            text = _read(path)
        elif path.is_dir():
            text = _read_folder(path)
        elif (name := _OTHER_NAMES.get(source, source)) in _DATA_SETS:
            text = _load_data_set(name)
        else:
            raise ValueError(f"is neither a file, a folder nor one of {', '.join(_DATA_SETS)}")
        if not text.strip():
            raise ValueError("holds no text")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"--calib-dataset {source}: {reason}; without it the built-in text is used") from error
    return text[:_LARGEST_TEXT]


def built_in_text() -> str:
    """Return the text that needs no download: more than 2 million characters, the same for one release of Python."""
    topics = importlib.import_module("pydoc_data.topics").topics
    parts = [_read(DEFAULT_TEXT), *(topics[name] for name in sorted(topics))]
    for name in _MODULES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None and found.origin.endswith(".py"):
            parts.append(Path(found.origin).read_text(encoding="utf-8", errors="replace"))
    return "\n\n".join(parts)


def samples_of(text: str, tokenizer: "Tokenizer", count: int, length: int) -> list[list[int]]:
    """Return at most ``count`` pieces of a text of ``length`` tokens each, the last one maybe shorter."""
    ids = tokenizer.encode(
        text[: count * length * 16], add_bos=False
    )  # no token has more than 16 characters on average
    pieces = [ids[i : i + length] for i in range(0, min(len(ids), count * length), length)]
    if len(pieces) > 1 and len(pieces[-1]) < _SHORTEST_SAMPLE:
        pieces.pop()
    return pieces


def digest(samples: list[list[int]]) -> str:
    """Return a hash of the samples, to tell whether a run may be continued."""
    return hashlib.sha256(json.dumps(samples).encode()).hexdigest()[:16]


def _read_folder(folder: Path) -> str:
    files = [file for file in sorted(folder.iterdir()) if Path(file.name.removesuffix(".gz")).suffix in _SUFFIXES]
    if not files:
        raise ValueError(f"is a folder without files that end with {', '.join(_SUFFIXES)}, optionally followed by .gz")
    return "\n\n".join(map(_read, files))


def _read(path: Path) -> str:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            text = file.read(_LARGEST_TEXT)
        if len(text) == _LARGEST_TEXT:  # maybe in the middle of a line
            text = text[: text.rfind("\n") + 1]
    else:
        text = path.read_text(encoding="utf-8")
    match Path(path.name.removesuffix(".gz")).suffix:
        case ".jsonl":
            return _join([json.loads(line) for line in text.splitlines() if line.strip()])
        case ".json":
            return _join(json.loads(text))
    return text


def _join(entries: Any) -> str:
    if not isinstance(entries, list):
        raise ValueError(f"must hold a list of texts, got {type(entries).__name__}")
    texts: list[str] = []
    for number, entry in enumerate(entries, 1):
        text = entry.get("text") if isinstance(entry, dict) else entry
        if not isinstance(text, str):
            raise ValueError(f"entry {number} must be a string, or an object with a string `text`")
        texts.append(text)
    return "\n\n".join(texts)


def _load_data_set(name: str) -> str:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ValueError(
            "needs the package `datasets`, which is not installed; give a text file instead, or run: "
            f"{install_command('lite')}"
        ) from error
    arguments, column = _DATA_SETS[name]
    try:
        rows = datasets.load_dataset(**arguments)
    except Exception as error:  # what `datasets` raises for a data set out of reach differs from version to version
        raise ValueError(f"could not be loaded ({error})") from error
    texts: list[str] = []
    size = 0
    for row in rows:
        texts.append(row[column])
        size += len(texts[-1])
        if size > _LARGEST_TEXT:
            break
    return "\n\n".join(texts)
