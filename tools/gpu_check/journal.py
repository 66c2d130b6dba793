"""What was done and found, a line of JSON each, written at once: whoever ends the program early has all until then."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tools.gpu_check.machine import ROOT

OK = "ok"
_SUFFIXES = {".py", ".cc", ".h", ".cu", ".cuh", ".txt", ".sh"}


@dataclass
class Done:
    """What is known of a stage.

    Attributes
    ----------
    fingerprint
        Of what it depended on when it was begun.
    outcome
        ``ok``, or what was wrong; empty: it was begun and never ended.
    findings
        Values by the name of their row.
    """

    fingerprint: str
    outcome: str = ""
    seconds: float = 0.0
    findings: dict[str, Any] = field(default_factory=dict)


class Journal:
    """A file of lines, and what they say.

    Parameters
    ----------
    path
        The file; made if missing.
    earlier
        Files of earlier calls, whose lines are copied in front.
    """

    def __init__(self, path: Path, earlier: Iterable[Path] = ()) -> None:
        self.path = path
        lines = [line for file in (*earlier, path) if file.exists() for line in file.read_text().splitlines()]
        path.write_text("".join(f"{line}\n" for line in dict.fromkeys(lines) if _content(line)))

    def write(self, **content: Any) -> None:
        """Add a line."""
        append(self.path, content)

    def stages(self) -> dict[str, Done]:
        """Return what is known of each stage by its name."""
        return read(self.path)


def append(path: Path, content: dict[str, Any]) -> None:
    """Add a line to a journal, also from another process."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(content | {"at": time.time()}) + "\n")


def read(path: Path) -> dict[str, Done]:
    """Return what a journal says of each stage by its name; of one that was begun again, only what came since."""
    found: dict[str, Done] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        content = _content(line)
        stage = content.get("stage", "")
        if "begun" in content:
            found[stage] = Done(content["begun"])
        elif stage not in found:
            continue
        elif "row" in content:
            found[stage].findings[content["row"]] = content["value"]
        else:
            found[stage].outcome, found[stage].seconds = content["outcome"], content["seconds"]
    return found


def _content(line: str) -> dict[str, Any]:
    """Return what a line holds; nothing for the last one of a program that was cut off."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def fingerprint(paths: Iterable[str], *more: str) -> str:
    """Return a digest of the sources under paths of the project, and of what else a stage depends on."""
    digest = hashlib.sha256()
    for name in paths:
        digest.update(_digest(name).encode())
    for text in more:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


@cache
def _digest(name: str) -> str:
    path = ROOT / name
    files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
