"""What Triton's Python backend loads; the model itself is ``python_backend.postprocessing``."""

from python_backend.postprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
