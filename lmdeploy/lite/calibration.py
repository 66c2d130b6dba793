"""The text that tells which inputs of a layer carry much: from a file, from a data set, or the one that comes along."""

import hashlib
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmdeploy.tokenizer import Tokenizer

# The Declaration of Independence (1776) and the Constitution of the United States (1787 to 1992), in the public domain.
DEFAULT_TEXT = Path(__file__).parent / "calibration.txt"
# Arguments of `datasets.load_dataset`, and the column with the text.
_DATA_SETS: dict[str, tuple[dict[str, Any], str]] = {
    "ptb": ({"path": "ptb_text_only", "name": "penn_treebank", "split": "train"}, "sentence"),
    "wikitext2": ({"path": "wikitext", "name": "wikitext-2-raw-v1", "split": "train"}, "text"),
    "c4": (
        {"path": "allenai/c4", "data_files": {"train": "en/c4-train.00000-of-01024.json.gz"}, "split": "train"},
        "text",
    ),
}
_LARGEST_TEXT = 64 << 20  # characters; more than any sensible number of samples needs
_SHORTEST_SAMPLE = 32  # tokens; a shorter rest says little


def load_text(source: str | None) -> str:
    """Return a calibration text.

    Parameters
    ----------
    source
        A text file; a ``.json`` file with a list, or a ``.jsonl`` file with lines, of strings or of objects with a
        ``text``; one of ``ptb``, ``wikitext2``, ``c4``, which need the package ``datasets``; None: the text that comes
        with this package.

    Raises
    ------
    ValueError
        If there is no such file or data set, or the file holds something else; names the default.
    """
    if source is None:
        return DEFAULT_TEXT.read_text(encoding="utf-8")
    path = Path(source).expanduser()
    try:
        if path.is_file():
            text = _read(path)
        elif source in _DATA_SETS:
            text = _load_data_set(source)
        else:
            raise ValueError(f"is neither a file nor one of {', '.join(_DATA_SETS)}")
        if not text.strip():
            raise ValueError("holds no text")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"--calib-dataset {source}: {reason}; without it the text that comes along is used") from error
    return text[:_LARGEST_TEXT]


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


def _read(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return _join([json.loads(line) for line in text.splitlines() if line.strip()])
    return _join(json.loads(text)) if path.suffix == ".json" else text


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
            "pip install 'lmdeploy[lite]'"
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
