"""Layers of ``torch.nn`` on the C++ engine's kernels, for CPUs: weights stay of 16 bits, activations are float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from lmdeploy.pytorch.adapters import AdapterTable
from lmdeploy.pytorch.cpu_kernels import Kernels, Matrix
from lmdeploy.pytorch.quantized_weights import QuantizedMatrix
from lmdeploy.pytorch.ranks import Ranks


class StoredWeight(torch.Tensor):
    """A weight that kernels hold, as float32 to modelling code: shape and type cost nothing, its numbers a copy a use.

    ``shape``: its shape. ``numbers``: returns a tensor of it.
    """

    numbers: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], numbers: Callable[[], torch.Tensor]) -> StoredWeight:
        """Return one of this shape."""
        made: StoredWeight = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)
        made.numbers = numbers
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute with the numbers."""
        args, kwargs = tree_map(lambda x: x.numbers().float() if isinstance(x, cls) else x, (args, kwargs or {}))
        return func(*args, **kwargs)


class NativeLinear(nn.Module):
    """``y = x W^T + b``."""

    def __init__(
        self,
        # ``[out_features, in_features]``, and ``[out_features]`` or None
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        kernels: Kernels | None,  # what computes; None: plain PyTorch, where the model is
        # Where the weight is a slice of the inputs: who has the others, with whom the results are summed
        ranks: Ranks | None = None,
        # Where the weight is a slice of the outputs that everybody needs whole: who has the others
        gathers: Ranks | None = None,
        # The kernels' form of the weight, in place of ``weight``, whose shape alone is looked at then
        matrix: Matrix | QuantizedMatrix | None = None,
        numbers: Callable[[], torch.Tensor] | None = None,  # returns the weight that ``matrix`` stands for
    ) -> None:
        super().__init__()
        self._kernels = kernels
        if kernels is None:
            is_parameter = isinstance(weight, nn.Parameter)
            self.weight: torch.Tensor = weight if is_parameter else nn.Parameter(weight, requires_grad=False)
            self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        else:
            self._matrix = matrix or Matrix(weight, bias)
            if isinstance(self._matrix, Matrix):
                numbers = self._matrix.numbers
            assert numbers is not None
            self.weight = StoredWeight(tuple(weight.shape), numbers)
            self.bias = None if bias is None else nn.Parameter(bias.float(), requires_grad=False)
        self._ranks, self._gathers = ranks, gathers
        self.out_features, self.in_features = weight.shape
        self._adapters: AdapterTable | None = None

    def adapt(self, adapters: AdapterTable, name: str) -> None:
        """Let adapters add to what the layer computes; ``name`` is the layer's in the checkpoint."""
        self._adapters, self._name = adapters, name

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products alone, of this rank."""
        if self._kernels is None:
            return functional.linear(x, self.weight, self.bias)
        return self._kernels.linear(self._matrix.native, self.out_features, x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out_features]`` for ``[..., in_features]``; float32 from the kernels."""
        y = self.multiply(x)
        if self._adapters is not None:
            self._adapters.add(self._name, x, y)
        if self._ranks is not None:
            y = self._ranks.sum(y)
        return y if self._gathers is None else self._gathers.gather(y)


class NativeRmsNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * (weight + offset)``, over the last axis."""

    def __init__(self, weight: torch.Tensor, eps: float, kernels: Kernels, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = weight.detach().to(torch.float32).contiguous()
        self._factors = self.weight + offset
        self._eps, self._kernels = eps, kernels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 of the shape of ``x``."""
        return self._kernels.rms_norm(self._factors, self._eps, x)


def rms_norm_of(module: nn.Module, kernels: Kernels) -> NativeRmsNorm | None:
    """Return our norm in the place of a module, if what it computes is one: that is tried."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(eps, float):
        return None
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return None
    x = torch.linspace(-3, 2, 3 * len(weight)).reshape(1, 3, -1)
    with torch.inference_mode():
        reference = module.float()(x)
        for offset in (0.0, 1.0):
            made = NativeRmsNorm(weight, eps, kernels, offset)
            if torch.allclose(made(x), reference, rtol=1e-5, atol=1e-6):
                return made
    return None


class NativeEmbedding(nn.Module):
    """Rows of a table ``[count, size]``."""

    def __init__(self, weight: torch.Tensor, kernels: Kernels) -> None:
        super().__init__()
        self._matrix = Matrix(weight, is_tiled=False)
        self.weight = StoredWeight(tuple(weight.shape), self._matrix.numbers)
        self._kernels = kernels

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return float32 ``[..., size]`` for ``[...]``."""
        return self._kernels.embed(self._matrix.native, self._matrix.in_features, tokens)
