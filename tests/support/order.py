"""The order of files: those that wait for servers among those that compute, so that no processor is idle.

pytest-xdist gives each worker the next file (``--dist loadfile --no-loadscope-reorder``). Files that take long begin
first, so that all workers end at about the same time.
"""

from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
# Folders by how long their files take; those that are not named follow.
_WAITING = ("e2e", "faults", "docs", "clients", "abuse", "webui")
_COMPUTING = ("engine", "pytorch", "kernels", "tools", "gateway")


def order(items: list[pytest.Item]) -> None:
    """Sort tests by their files; those of a file stay as they are."""
    files = dict.fromkeys(item.path for item in items)
    places: dict[Path, float] = {}
    for folders in (_WAITING, _COMPUTING):
        group = [file for folder in folders for file in files if file.is_relative_to(_ROOT / folder)]
        places.update((file, number / len(group)) for number, file in enumerate(group))
    items.sort(key=lambda item: places.get(item.path, 1))
