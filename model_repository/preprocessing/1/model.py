"""Entry point of Triton's Python backend; the model itself is ``python_backend.preprocessing``."""

from python_backend.preprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
