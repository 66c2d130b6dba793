"""Table of served architectures: the engine, the formats, and the reference that tests compare each with."""

import json
from dataclasses import dataclass
from pathlib import Path

from lmdeploy.turbomind.families import families
from lmdeploy.turbomind.gguf.architectures import published_architectures
from lmdeploy.turbomind.text_part import ARCHITECTURES as SEEING

TESTED = Path(__file__).parent / "families" / "tested.json"
"""Architectures by the reference that tests compare them with, in lines (`tests.support.tested_table` writes it)."""


@dataclass(frozen=True)
class ServedArchitecture:
    """A row of the table."""

    architecture: str
    engine: str
    formats: str
    tested: str


def tested_architectures() -> dict[str, str]:
    """Return the reference of each architecture."""
    lines: dict[str, list[str]] = json.loads(TESTED.read_text(encoding="utf-8"))
    return {name: reference for reference, names in lines.items() for name in " ".join(names).split()}


def served_architectures() -> list[ServedArchitecture]:
    """Return the rows, by name."""
    in_gguf, tested = published_architectures(), tested_architectures()
    return [
        ServedArchitecture(
            name,
            "C++, with images" if name in SEEING else "C++",
            "safetensors, GGUF" if name in in_gguf else "safetensors",
            tested[name],
        )
        for name in sorted({*families(), *SEEING})
    ]
