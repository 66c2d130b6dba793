"""The order of files: those that take long begin first, so that all workers end at about the same time.

pytest-xdist gives each worker the next file (``--dist loadfile --no-loadscope-reorder``). The longest files start
servers or hold engines; what is left for the end takes seconds.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
# Folders by how long their files take; those that are not named follow.
_FIRST = ("e2e", "faults", "docs", "clients", "abuse", "engine", "pytorch", "kernels", "tools", "gateway", "webui")


def order(items: list[pytest.Item]) -> None:
    """Sort tests by their folders; those of a folder stay as they are."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    inside: Sequence[str] = item.path.relative_to(_ROOT).parts if item.path.is_relative_to(_ROOT) else ("",)
    return _FIRST.index(inside[0]) if inside[0] in _FIRST else len(_FIRST)
