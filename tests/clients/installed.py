"""The clients that ``make clients`` installs under the cache root, and their versions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmdeploy.paths import cache_root

ROOT = cache_root() / "clients"
NODE_MODULES = ROOT / "node" / "node_modules"


@dataclass(frozen=True)
class Package:
    """A package of PyPI or npm, in one of the environments.

    ``name``: in its registry; ``environment``: ``python``, ``aider`` or ``guidellm``, virtual environments, or
    ``node``.
    """

    name: str
    environment: str = "python"

    @property
    def registry(self) -> str:
        """Where it comes from."""
        return "npm" if self.environment == "node" else "PyPI"

    @property
    def version(self) -> str | None:
        """Installed version; None: not installed."""
        if self.environment == "node":
            file = NODE_MODULES / self.name / "package.json"
            return json.loads(file.read_text())["version"] if file.is_file() else None
        expected = _normal(self.name)
        for path in self._folder.glob("lib/*/site-packages/*.dist-info"):
            name, _, version = path.name.removesuffix(".dist-info").partition("-")
            if _normal(name) == expected:
                return version
        return None

    @property
    def python(self) -> str:
        """The interpreter of its environment."""
        return str(self._folder / "bin" / "python")

    @property
    def mark(self) -> pytest.MarkDecorator:
        """Of tests that use it (``conftest.py``)."""
        return pytest.mark.client(self)

    @property
    def _folder(self) -> Path:
        return ROOT if self.environment == "python" else ROOT / self.environment


def _normal(name: str) -> str:
    """Return a name of PyPI as all its spellings are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()
