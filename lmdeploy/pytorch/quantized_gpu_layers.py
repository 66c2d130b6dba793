"""Quantized linear layers on a GPU, on kernels in the Triton language."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lmdeploy.pytorch.native_layers import NativeLinear
from lmdeploy.pytorch.quantized_weights import QuantizedWeights
from lmdeploy.pytorch.start.quantized import uses_native
from lmdeploy.turbomind.manifest import Quantized, Scaled

_FP8_BLOCK = 128
_FP8_CAPABILITY = (8, 9)


def gpu_linear_of(quantized: QuantizedWeights, layer: str, bias: torch.Tensor | None) -> NativeLinear | None:
    """Return the layer on its codes; None where no kernel takes such codes, or passes its self-check: numbers do."""
    made, tensors = quantized.expressions[layer], quantized.stored(layer)
    if isinstance(made, Quantized) and made.layout == "awq" and made.group % 16 == 0 and uses_native("awq"):
        qweight, qzeros, scales = tensors
        return AwqLinear(made.shape, {"qweight": qweight, "qzeros": qzeros, "scales": scales}, bias)
    if not isinstance(made, Scaled):
        return None
    outputs, inputs = made.shape
    weight, scales = tensors
    if weight.dtype == torch.int8:
        if not uses_native("int8"):
            return None
        scales = scales.float().flatten()
        return Int8Linear(made.shape, {"weight": weight, "scales": scales.expand(outputs).contiguous()}, bias)
    has_type = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= _FP8_CAPABILITY
    if made.block == (_FP8_BLOCK, min(_FP8_BLOCK, inputs)) and has_type and uses_native("fp8"):
        return Fp8Linear(made.shape, {"weight": weight, "scales": scales.float().contiguous()}, bias)
    return None


class _QuantizedLinear(NativeLinear):
    """``y = x W^T + b`` with codes in buffers."""

    def __init__(
        self, shape: tuple[int, ...], quantized: Mapping[str, torch.Tensor], bias: torch.Tensor | None
    ) -> None:
        super().__init__(torch.empty(*shape, device="meta"), None, None)
        del self.weight, self.bias
        for name, tensor in quantized.items():
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out_features]`` of the type of ``x``."""
        return self._rows(x.reshape(-1, self.in_features)).reshape(*x.shape[:-1], self.out_features)

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class AwqLinear(_QuantizedLinear):
    """4-bit weights of AWQ."""

    qweight: torch.Tensor
    qzeros: torch.Tensor
    scales: torch.Tensor

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        from lmdeploy.pytorch.kernels.awq_linear import awq_linear

        return awq_linear(x, self.qweight, self.qzeros, self.scales, self.bias)


class Int8Linear(_QuantizedLinear):
    """8-bit integers for weights and rows (W8A8)."""

    weight: torch.Tensor
    scales: torch.Tensor

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        from lmdeploy.pytorch.kernels.int8_linear import int8_linear, quantize_rows_int8

        return int8_linear(*quantize_rows_int8(x), self.weight, self.scales, self.bias, dtype=x.dtype)


class Fp8Linear(_QuantizedLinear):
    """8-bit floats for weights and rows, in blocks of 128."""

    weight: torch.Tensor
    scales: torch.Tensor

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        from lmdeploy.pytorch.kernels.fp8_linear import fp8_linear, quantize_rows_fp8

        return fp8_linear(*quantize_rows_fp8(x), self.weight, self.scales, self.bias, dtype=x.dtype)
