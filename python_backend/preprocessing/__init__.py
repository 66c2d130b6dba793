"""The Triton model `preprocessing`: text or messages in, token ids out. Tensors: model_repository/preprocessing."""

from python_backend.preprocessing.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
