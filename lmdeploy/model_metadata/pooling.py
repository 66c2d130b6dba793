"""How a model that is made for embeddings makes one of a text, as sentence-transformers writes it down.

``modules.json`` lists the steps: a transformer, ``Pooling`` of its hidden states into one vector, and often
``Normalize`` (https://sbert.net/docs/package_reference/sentence_transformer/models.html).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_FILE = "pooling.json"
_MODULES = "modules.json"
_LAST = "lasttoken"
_MODE = "pooling_mode_"


@dataclass(frozen=True)
class Pooling:
    """What becomes of the hidden states of a text.

    Attributes
    ----------
    normalizes
        The vector is brought to length 1.
    refusal
        Why this engine cannot do it; empty: the last token's hidden state is the text's vector.
    """

    normalizes: bool = False
    refusal: str = ""


def pooling_of(model_dir: Path) -> Pooling | None:
    """Return how a checkpoint wants embeddings made; None: it is not made for that."""
    if not (model_dir / _MODULES).is_file():
        return None
    try:
        steps = [(str(step["type"]).rpartition(".")[2], str(step["path"])) for step in _read(model_dir / _MODULES)]
        return Pooling("Normalize" in dict(steps), _refusal(model_dir, steps))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return Pooling(refusal=f"{_MODULES} and what it names cannot be read ({' '.join(str(error).split())})")


def write_pooling(model_dir: Path, engine_dir: Path) -> None:
    """Write what :func:`pooling_of` says of a checkpoint into its engine directory."""
    pooling = pooling_of(model_dir)
    if pooling is not None:
        (engine_dir / _FILE).write_text(json.dumps(asdict(pooling)), encoding="utf-8")


def read_pooling(engine_dir: Path) -> Pooling | None:
    """Return what :func:`write_pooling` wrote."""
    file = engine_dir / _FILE
    return Pooling(**_read(file)) if file.is_file() else None


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _refusal(model_dir: Path, steps: list[tuple[str, str]]) -> str:
    unknown = [kind for kind, _ in steps if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        return f"its step {unknown[0]} is not supported"
    if _read(model_dir / "config.json").get("is_causal") is False:
        return "its attention is bidirectional, which is not supported"
    folder = next((path for kind, path in steps if kind == "Pooling"), None)
    if folder is None:
        return f"{_MODULES} has no pooling"
    modes = _modes(_read(model_dir / folder / "config.json"))
    return "" if modes == [_LAST] else f"its pooling is {' and '.join(modes) or 'not said'}; supported: {_LAST}"


def _modes(config: dict[str, Any]) -> list[str]:
    if named := config.get("pooling_mode"):
        return [named] if isinstance(named, str) else [str(each) for each in named]
    return [name.removeprefix(_MODE) for name, is_on in config.items() if name.startswith(_MODE) and is_on is True]
