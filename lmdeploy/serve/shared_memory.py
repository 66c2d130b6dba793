"""Cleanup of shared memory that a killed tritonserver leaves behind: 1 MiB a model.

The backend removes its regions itself when it ends in order. Here they get a name by which they can be found otherwise.
"""

from __future__ import annotations

from pathlib import Path

from lmdeploy.scratch import Scratch, left_behind

FOLDER = Path("/dev/shm")  # where Linux keeps what shm_open makes
_PREFIX = "lmdeploy-triton-"


class Regions:
    """A name for the regions of one server, taken from when this is made until `remove`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        for left in left_behind(folder, _PREFIX):
            _remove_regions(left)
        self._scratch = Scratch(folder, _PREFIX)
        self.prefix = f"{self._scratch.path.name}-"  # how the regions' names have to begin

    def remove(self) -> None:
        """Remove what the server, which has ended, left of them."""
        _remove_regions(self._scratch.path)
        self._scratch.remove()


def _remove_regions(scratch: Path) -> None:
    for region in scratch.parent.glob(f"{scratch.name}-*"):
        region.unlink(missing_ok=True)
