"""What Triton's Python backend loads; the model itself is ``python_backend.vision``."""

from python_backend.vision import TritonPythonModel

__all__ = ["TritonPythonModel"]
