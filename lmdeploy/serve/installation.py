"""Lookup of the tritonserver binary, and its backend directory.

It is the one on PATH, as in NVIDIA's images, or the one inside the wheel ``nvidia-pytriton``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmdeploy.distribution import install_command
from lmdeploy.made_once import made_once
from lmdeploy.paths import cache_root
from lmdeploy.serve.errors import TritonStartError
from lmdeploy.serve.ports import DEFAULT_TRITON_HOST
from lmdeploy.serve.restrictions import RESTRICTION_KEY, restriction_options

PACKAGE = Path(__file__).resolve().parent.parent  # lmdeploy/
OUR_BACKEND = PACKAGE / "backends" / "turbomind"
_PRIVATE_FILES = OUR_BACKEND / "libprivate_files.so"  # backend_cpp/triton/private_files.cc
_SHELL_KEY = "$(cat /proc/sys/kernel/random/uuid)"  # a random one each time the line is run, which is kept nowhere
_SYSTEM_LIBRARY_DIRS = {"/lib", "/lib64", "/usr/lib", "/usr/lib64"}


@dataclass(frozen=True)
class TritonInstallation:
    """A tritonserver and what belongs to it."""

    binary: Path  # the program
    python_backend: Path  # directory of its Python backend
    python_stub: Path | None  # the stub for the running Python; None: the one in `python_backend` fits
    library_dirs: tuple[Path, ...]  # directories its libraries are in, alongside the system's


def find_tritonserver() -> TritonInstallation:
    """Return the tritonserver to use.

    Raises `TritonStartError` if there is none, or it does not support the running Python.
    """
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        binary = Path(on_path)
        backends = binary.resolve().parent.parent / "backends"
        return TritonInstallation(binary, backends / "python", None, ())
    wheel = importlib.util.find_spec("pytriton")
    if wheel is None or wheel.origin is None:
        raise TritonStartError(
            f"there is no tritonserver, on PATH or installed; run: {install_command('serve')}, which has one for "
            "Python 3.10 to 3.12"
        )
    package = Path(wheel.origin).parent
    root = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.is_file():
        known = ", ".join(sorted(folder.name for folder in (root / "python_backend_stubs").iterdir()))
        raise TritonStartError(f"the wheel nvidia-pytriton supports Python {known}, not {version}")
    libraries = package.parent / "nvidia_pytriton.libs"
    return TritonInstallation(root / "bin" / "tritonserver", root / "backends" / "python", stub, (libraries,))


def backend_directory(installation: TritonInstallation, backends: Sequence[Path]) -> Path:
    """Return a directory with links to the Python backend and to `backends`, made once and kept in the cache.

    Raises `TritonStartError` if a backend is not compiled. ``backends``: folders named after the backend whose library
    they hold.
    """
    for folder in backends:
        library = folder / f"libtriton_{folder.name}.so"
        if not library.is_file():
            raise TritonStartError(f"a Triton backend is not compiled: {library} is missing; run: make build")
    links = {f"python/{file.name}": file for file in installation.python_backend.iterdir() if file.is_file()}
    if installation.python_stub is not None:
        links[f"python/{installation.python_stub.name}"] = installation.python_stub
    links |= {folder.name: folder for folder in backends}
    digest = hashlib.sha256(repr(sorted(links.items())).encode()).hexdigest()[:16]
    directory = cache_root() / "triton-backends" / digest
    return made_once(directory, lambda made: _make_links(made, links))


def _make_links(folder: Path, links: Mapping[str, Path]) -> None:
    for name, target in links.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def server_environment(installation: TritonInstallation) -> dict[str, str]:
    """Return the environment in which that server finds its libraries, and its Python models ours."""
    env = dict(os.environ)
    for name, (first, last) in _search_paths(installation).items():
        value = os.pathsep.join(filter(None, [*first, env.get(name, ""), *last]))
        if value:
            env[name] = value
    env["LD_PRELOAD"] = ":".join(filter(None, [_PRIVATE_FILES.name, env.get("LD_PRELOAD", "")]))
    env["LMDEPLOY_PYTHON"] = sys.executable
    return env


def shell_command(installation: TritonInstallation, backends: Path, repository: Path) -> str:
    """Return the line for a shell, whatever its environment, that serves a model repository to this machine.

    ``installation``, ``backends``: as ``find_tritonserver`` and ``backend_directory`` return them.
    """
    words = []
    for name, (first, last) in _search_paths(installation).items():
        before, after = (shlex.quote(os.pathsep.join(folders)) if folders else "" for folders in (first, last))
        # The shell's own value goes between, where it has one: an empty part would be the current directory.
        if before:
            words.append(f'{name}={before}"${{{name}:+:${name}}}"' + (f":{after}" if after else ""))
        elif after:
            words.append(f'{name}="${{{name}:+${name}:}}"{after}')
    words += [f'LD_PRELOAD={_PRIVATE_FILES.name}"${{LD_PRELOAD:+:$LD_PRELOAD}}"']
    words += [f'{RESTRICTION_KEY}="{_SHELL_KEY}"']
    words += [f"LMDEPLOY_PYTHON={shlex.quote(sys.executable)}", shlex.quote(str(installation.binary))]
    words += ["--model-repository", shlex.quote(str(repository)), "--backend-directory", shlex.quote(str(backends))]
    words += [f"--{door}-address={DEFAULT_TRITON_HOST}" for door in ("http", "grpc", "metrics")]
    words += [f'--{name}="{value}"' for name, value in restriction_options(_SHELL_KEY).items()]
    return " ".join(words)


def _search_paths(installation: TritonInstallation) -> dict[str, tuple[list[str], list[str]]]:
    """Return the first and last folders of each variable that lists folders."""
    libpython = sysconfig.get_config_var("LIBDIR")
    last = [] if libpython is None or libpython in _SYSTEM_LIBRARY_DIRS else [libpython]
    return {
        "LD_LIBRARY_PATH": ([str(folder) for folder in (*installation.library_dirs, _PRIVATE_FILES.parent)], last),
        # The Python backend embeds the interpreter whose `python3` is first on PATH: ours, in its virtual environment.
        "PATH": ([str(Path(sys.executable).parent)], []),
        "PYTHONPATH": ([str(PACKAGE.parent)], []),
    }
