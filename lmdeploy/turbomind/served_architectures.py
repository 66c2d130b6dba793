"""What is served, as a table: each architecture with the engine, the formats, and what tests compare it with."""

from dataclasses import dataclass

from lmdeploy.turbomind.families import families
from lmdeploy.turbomind.gguf.architectures import published_architectures
from lmdeploy.turbomind.text_part import ARCHITECTURES as SEEING


@dataclass(frozen=True)
class ServedArchitecture:
    """A row of the table."""

    architecture: str
    engine: str
    formats: str
    tested: str


def served_architectures() -> list[ServedArchitecture]:
    """Return the rows, by name."""
    in_gguf = published_architectures()
    rows = []
    for name, family in families().items():
        has_gguf = name in in_gguf
        formats = "safetensors, GGUF" if has_gguf else "safetensors"
        tested = "transformers" if family.config is None else "the published formulas"
        engine = "C++, with images" if name in SEEING else "C++"
        rows.append(ServedArchitecture(name, engine, formats, tested + (", llama.cpp" if has_gguf else "")))
    rows += [
        ServedArchitecture(name, "C++, with images", "safetensors", "transformers")
        for name in SEEING
        if name not in families()
    ]
    return sorted(rows, key=lambda row: row.architecture)
