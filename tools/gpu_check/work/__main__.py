"""Runs one module of this folder: ``python -m tools.gpu_check.work NAME [ARGUMENT...]``."""

import importlib
import sys

from tools.gpu_check.stages import LEFT_OUT
from tools.gpu_check.work.context import Context, LeftOut

if __name__ == "__main__":
    work = importlib.import_module(f"tools.gpu_check.work.{sys.argv[1]}")
    try:
        work.main(Context.of_process(), *sys.argv[2:])
    except LeftOut as reason:
        print(f"{LEFT_OUT}: {reason}")
