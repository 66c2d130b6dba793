"""Runs one module of this folder: ``python -m tools.gpu_check.work NAME [ARGUMENT...]``."""

import importlib
import sys

from tools.gpu_check.work.context import Context

if __name__ == "__main__":
    importlib.import_module(f"tools.gpu_check.work.{sys.argv[1]}").main(Context.of_process(), *sys.argv[2:])
