"""The real LMDeploy packages whose Triton client our server has to satisfy, run in their own processes."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.paths import cache_root

# Modules that the clients import and we do not have; none of it computes anything here.
_COMMON = (
    "mmengine-lite==0.10.7", "addict==2.4.0", "yapf==0.43.0", "termcolor==3.1.0", "platformdirs==4.3.8",
    "fuzzywuzzy==0.18.0", "accelerate==1.8.1",
)  # fmt: skip
_COMMAND = "from lmdeploy.cli import run; run()"
_PROMPT = "double enter to end input >>> "


class OldClient:
    """One release, with the libraries it needs.

    ``version``: of the PyPI package ``lmdeploy``. It is installed into the cache on first use.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._paths = [_installed(f"lmdeploy=={version}"), _installed(*_COMMON)]

    def chat(self, address: str, *turns: str, options: tuple[str, ...] = ()) -> list[str]:
        """Type turns into ``lmdeploy serve triton_client``, each ended by an empty line, and ``exit``.

        Returns what it printed after each of them. It must leave with status 0.
        """
        typed = "".join(f"{turn}\n\n" for turn in (*turns, "exit"))
        done = self._run(["-c", _COMMAND, "serve", "triton_client", address, *options], typed)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        _, *responses = done.stdout.split(_PROMPT)
        assert len(responses) == len(turns) + 1, done.stdout
        return [response.strip() for response in responses[:-1]]

    def run_script(self, script: str, *arguments: str) -> Any:
        """Run a Python script against the package; return the JSON value it prints on its last line."""
        done = self._run(["-c", script, *arguments])
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def _run(self, arguments: list[str], typed: str = "") -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, self._paths)), "PYTHONWARNINGS": "ignore"}
        with tempfile.TemporaryDirectory() as elsewhere:  # the checkout's lmdeploy must not come first
            return subprocess.run(
                [sys.executable, *arguments],
                input=typed,
                env=env,
                cwd=elsewhere,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )


@functools.cache
def _installed(*requirements: str) -> Path:
    """Return a folder with the Python files of some packages; skip the test, saying why, when they cannot be had."""
    digest = hashlib.sha256(repr(requirements).encode()).hexdigest()[:8]
    folder = cache_root() / "old-clients" / f"{requirements[0].replace('==', '-')}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheels, made = Path(scratch, "wheels"), Path(scratch, "made")
        flags = f"--quiet --no-deps --only-binary :all: --retries 1 --timeout 15 --dest {wheels}"
        download = [sys.executable, "-m", "pip", "download", *flags.split()]
        done = subprocess.run([*download, *requirements], capture_output=True, text=True, timeout=240, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            pytest.skip(f"old LMDeploy client: {' '.join(requirements)} cannot be downloaded ({reason})")
        for wheel in wheels.iterdir():
            with zipfile.ZipFile(wheel) as archive:  # without the CUDA libraries, which the client never loads
                archive.extractall(made, [name for name in archive.namelist() if not name.endswith(".so")])
        made.rename(folder)
    return folder
