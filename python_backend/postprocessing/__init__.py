"""The Triton model `postprocessing`: token ids in, text out. Tensors: model_repository/postprocessing."""

from python_backend.postprocessing.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
