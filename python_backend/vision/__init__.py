"""The Triton model `vision`: images in, embeddings out. Tensors: model_repository/vision."""

from python_backend.vision.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
