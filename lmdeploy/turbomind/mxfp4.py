"""Stacked experts in MXFP4, as GPT-OSS is published.

A family describes a stack ``X`` of matrices ``[experts, in, out]``. Where a checkpoint has ``X_blocks`` and
``X_scales`` instead, :func:`with_mxfp4` puts what they stand for in its place; ``backend_cpp/weights/checkpoint.cc``
decodes them.
"""

from collections.abc import Mapping

from lmdeploy.turbomind.manifest import Expression, Load, Mxfp4, Operation, Slice, over_loads, permute, rows_of
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

METHOD = "mxfp4"  # in config.json's quantization_config
_BLOCK = 32  # inputs that share a scale


def with_mxfp4(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> dict[str, Expression]:
    """Return the engine tensors with the codes in place of each stack of matrices that the checkpoint stores so."""

    def stored(expression: Operation) -> Expression | None:
        if isinstance(expression, Slice) and expression.dim == 0:
            (stack,) = expression.args
            if isinstance(stack, Load) and f"{stack.name}_blocks" in index.tensors:
                return _matrices(stack, expression.begin, expression.end)
        return None

    return {name: over_loads(expression, lambda load: load, stored) for name, expression in tensors.items()}


def _matrices(stack: Load, begin: int, end: int) -> Expression:
    """Return matrices ``begin`` to ``end`` of a stack; the codes are as ``[experts, out, in]``."""
    count, inputs, outputs = stack.shape
    blocks = (count, outputs, inputs // _BLOCK)
    quantized = Load(f"{stack.name}_blocks", (*blocks, _BLOCK // 2), ("U8",))
    scales = Load(f"{stack.name}_scales", blocks, ("U8",))
    return permute(Mxfp4((rows_of(quantized, begin, end), rows_of(scales, begin, end))), 0, 2, 1)
