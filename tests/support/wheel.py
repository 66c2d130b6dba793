"""The wheel of this checkout, and environments that have it with as much as its metadata asks for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent


def build_wheel(directory: Path) -> Path:
    """Return this checkout's wheel. Nothing is downloaded, and nothing compiled that ``make build`` has compiled."""
    compiled = ROOT / "build"
    assert (compiled / "CMakeCache.txt").is_file(), "nothing is built: run `make build` first"
    build = ROOT / "build-wheel"  # as deep as the other: objects are known by their paths
    shutil.rmtree(build, ignore_errors=True)
    shutil.copytree(compiled, build)
    cache = build / "CMakeCache.txt"
    cache.write_text(re.sub(rf"{re.escape(str(compiled))}(?=/|$)", str(build), cache.read_text(), flags=re.MULTILINE))
    env = {"CXX": shutil.which("c++") or "c++", **os.environ}  # CMake's own choice, not that of Python's build
    # As `make build` does: the build's tools are those of this environment.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    options += ["--config-settings", f"build-dir={build.name}"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(directory), str(ROOT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    shutil.rmtree(build)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = directory.glob("*.whl")
    return wheel


def kept_by_git() -> set[str]:
    """Return the files of this checkout that git keeps, as paths from its root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(filter(None, listed.split("\0")))


class Environment:
    """A virtual environment without this checkout, and with the packages that it is given alone.

    Packages are links to those of the running environment, so nothing is downloaded: what is shown is that an extra
    names all that is imported, not that an index has it.
    """

    def __init__(self, directory: Path, wheel: Path) -> None:
        venv.create(directory, symlinks=True)
        self._packages = next((directory / "lib").glob("python3*/site-packages"))
        self._bin = directory / "bin"
        self._there: set[tuple[str, str]] = set()
        options = ["--no-deps", "--no-index", "--disable-pip-version-check", "-q"]
        install = [sys.executable, "-m", "pip", "--python", self.python, "install", *options, str(wheel)]
        subprocess.run(install, check=True)
        (reported,) = self._packages.glob("lmdeploy_triton-*.dist-info")
        self.metadata = metadata.Distribution.at(reported)
        self.add("")

    def add(self, extra: str) -> None:
        """Add what the wheel's metadata asks for an extra; empty: for itself."""
        for text in self.metadata.requires or []:
            self._add(Requirement(text), extra)

    def _add(self, requirement: Requirement, extra: str) -> None:
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            return
        name = canonicalize_name(requirement.name)
        if name == "lmdeploy-triton":
            for included in requirement.extras:
                self.add(included)
            return
        for correct in ("", *requirement.extras):
            if (name, correct) in self._there:
                continue
            self._there.add((name, correct))
            found = metadata.distribution(name)
            for file in found.files or []:
                if file.parts[0] != ".." and file.parts[0] != "__pycache__":
                    link = self._packages / file.parts[0]
                    if not link.exists():
                        link.symlink_to(Path(str(found.locate_file(file.parts[0]))))
            for text in found.requires or []:
                self._add(Requirement(text), correct)

    def run(self, *command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, somewhere else than in the checkout."""
        return subprocess.run(
            [str(self._bin / command[0]), *command[1:]],
            cwd=self._bin,
            env={**self.environ(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
        )

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self._bin / "python")

    @staticmethod
    def environ() -> dict[str, str]:
        """Return this process's environment without what would find the checkout."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**kept, "PYTHONSAFEPATH": "1"}
