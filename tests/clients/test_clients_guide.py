"""The table of docs/guides/clients.md names the clients that tests run, in the versions that make clients installs."""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GUIDE = (ROOT / "docs" / "guides" / "clients.md").read_text(encoding="utf-8")
FILES = {"PyPI": ("clients", "aider", "guidellm"), "npm": ("clients-node",)}
DOCUMENTED = re.findall(r"(PyPI|npm) `([^`]+)` ([\d.]+)", GUIDE)


def pins(registry: str) -> dict[str, str]:
    """Return the versions of a registry's packages that are installed."""
    lines = [
        line
        for name in FILES[registry]
        for line in (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    split = [re.sub(r"\[.*?\]", "", line).rpartition("==" if registry == "PyPI" else "@") for line in lines]
    return {name: version for name, _, version in split}


def test_the_guide_names_the_versions_that_are_installed() -> None:
    assert len(DOCUMENTED) > 15
    assert [(registry, name, pins(registry).get(name)) for registry, name, _ in DOCUMENTED] == DOCUMENTED


def test_the_guide_names_every_client_that_is_run() -> None:
    run = [
        found
        for path in HERE.glob("test_*.py")
        for found in re.findall(r'Package\("([^"]+)"(?:, "(\w+)")?\)', path.read_text(encoding="utf-8"))
    ]
    tested = {("npm" if environment == "node" else "PyPI", name) for name, environment in run}
    assert len(tested) > 15
    assert tested <= {(registry, name) for registry, name, _ in DOCUMENTED}
