"""Compiles the kernels for one GPU: ``python -m tools.gpu_check.build 90a-real [--prebuilt]``.

Warnings are no errors here: another compiler has others. With ``--prebuilt``, modules that were compiled elsewhere for
this version of Python are taken if they can be loaded: ``cmake`` with ``-DCMAKE_CUDA_ARCHITECTURES=90a-real`` and
``-DPython_EXECUTABLE`` of that version makes them.
"""

import importlib
import os
import subprocess
import sys

from tools.gpu_check.machine import BUILD


def commands(architecture: str) -> list[list[str]]:
    """Return what configures and what compiles."""
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_ARCHITECTURES": architecture,
        "Python_EXECUTABLE": sys.executable,
        "TURBOMIND_CUDA": "ON",
        "TURBOMIND_GRAMMAR": "OFF",
        "TURBOMIND_TRITON": "OFF",
        "TURBOMIND_WERROR": "OFF",
    }
    return [
        ["cmake", "-S", ".", "-B", BUILD, "-G", "Ninja", *(f"-D{name}={value}" for name, value in settings.items())],
        ["cmake", "--build", BUILD, "--parallel", str(os.cpu_count()), "--target", "_turbomind", "_cuda_device"],
    ]


def is_prebuilt() -> bool:
    """Whether the modules are there and load; printed if not."""
    for name in ("lmdeploy._turbomind", "tests.kernels._cuda_device"):
        try:
            print(importlib.import_module(name).__file__)
        except ImportError as error:
            print(f"built again, since what is here does not load: {error}", flush=True)
            return False
    return True


def main() -> None:
    """Run the command line."""
    if "--prebuilt" in sys.argv[2:] and is_prebuilt():
        return
    for command in commands(sys.argv[1]):
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            sys.exit(status)


if __name__ == "__main__":
    main()
