"""Entry point of Triton's Python backend; the model itself is ``python_backend.postprocessing``."""

from python_backend.postprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
