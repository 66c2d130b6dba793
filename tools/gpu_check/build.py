"""Compiles the kernels for one GPU: ``python -m tools.gpu_check.build 90a-real``.

Warnings are no errors here: another compiler has others.
"""

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


def main() -> None:
    """Run the command line."""
    for command in commands(sys.argv[1]):
        status = subprocess.run(command, check=False).returncode
        if status != 0:
            sys.exit(status)


if __name__ == "__main__":
    main()
