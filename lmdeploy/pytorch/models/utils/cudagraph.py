"""CUDA graph support of a model."""

from __future__ import annotations

from typing import Any


class CudaGraphMixin:
    """A model whose decoding may be captured; a class that says ``support_cuda_graph = False`` may not."""

    def support_cuda_graph(self, *_: Any, **__: Any) -> bool:
        """Return whether a step with these inputs may be captured: one of decoding alone."""
        return True
