"""The CUDA operators on NumPy arrays: emulated on the CPU, and on a GPU where the build has CUDA and finds one.

``backend_cpp/testing/bindings/cuda_*.cc`` says what the functions of a module take.
"""

import importlib
import importlib.util
from typing import Any

# The compiled module; its functions take and return arrays.
CudaModule = Any

MODULES = {"emulated": "tests.kernels._cuda_emulated", "gpu": "tests.kernels._cuda_device"}


def load_device(name: str) -> CudaModule:
    """Return the module of ``emulated`` or ``gpu``; ``ImportError`` where it is not built."""
    return importlib.import_module(MODULES[name])


def built_devices() -> list[str]:
    """Return the devices that tests can run on here."""
    found = [name for name, module in MODULES.items() if importlib.util.find_spec(module) is not None]
    return [name for name in found if load_device(name).device_count() > 0]
