"""Name and version of the installed distribution, and detection of another one with the same package name.

On the public index ``lmdeploy`` is upstream's distribution; ours is `NAME`. Both install a package ``lmdeploy``, so in
one environment the files of one overwrite those of the other.
"""

from __future__ import annotations

import os
from pathlib import Path

NAME = "lmdeploy-triton"
UPSTREAM = "lmdeploy"

# Commands that install an extra in a checkout, where it is not `make dev`.
_IN_CHECKOUT = dict.fromkeys(("serve", "webui", "vision"), "make setup") | {"lite": "pip install datasets"}
PACKAGE = Path(__file__).resolve().parent


class MixedInstallationError(ImportError):
    """The files of two distributions are in one folder."""


def require_unmixed(packages: Path = PACKAGE.parent) -> None:
    """Raise `MixedInstallationError` where upstream's distribution has its files in the same folder.

    Part of ``import lmdeploy``: it lists one folder and imports nothing. ``packages``: the folder of the package.
    """
    with os.scandir(packages) as entries:
        names = [entry.name for entry in entries]
    found = [name for name in names if name.startswith(f"{UPSTREAM}-") and name.endswith(".dist-info")]
    if found:
        raise MixedInstallationError(
            f"{packages} holds the distributions {found[0].removesuffix('.dist-info')} and {NAME}, which overwrite "
            f"each other's files. Use an environment for each, or run: pip uninstall {UPSTREAM} {NAME}; then install "
            f"{NAME} again",
            name="lmdeploy",
        )


def install_command(extra: str, root: Path = PACKAGE.parent) -> str:
    """Return the command that installs an extra: pip for an installed wheel, make in the checkout ``root``."""
    if not (root / "pyproject.toml").is_file():
        return f"pip install '{NAME}[{extra}]'"
    command = _IN_CHECKOUT.get(extra, "make dev")
    return command.replace("make", f"make -C {root}")


def upstream_elsewhere() -> str | None:
    """Return version and folder of an upstream distribution in this environment; None: there is none."""
    from importlib import metadata

    try:
        found = metadata.distribution(UPSTREAM)
    except metadata.PackageNotFoundError:
        return None
    return f"{found.version} in {found.locate_file('')}"
