"""Entry point of Triton's Python backend; the model itself is ``python_backend.vision``."""

from python_backend.vision import TritonPythonModel

__all__ = ["TritonPythonModel"]
