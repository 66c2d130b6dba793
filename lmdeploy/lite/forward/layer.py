"""A decoder layer."""

import torch
from torch import Tensor

from lmdeploy.lite.forward.attention import attention
from lmdeploy.lite.forward.experts import mixture
from lmdeploy.lite.forward.parts import LayerWeights, activate
from lmdeploy.lite.forward.recurrence import recurrence
from lmdeploy.turbomind.families.experts import has_experts
from lmdeploy.turbomind.spec import ModelSpec


def run_layer(spec: ModelSpec, weights: LayerWeights, layer: int, hidden: Tensor) -> Tensor:
    """Return what a layer makes of ``[batch, tokens, hidden]``."""
    block = spec.block_of(layer)
    attended = torch.zeros_like(hidden)
    if spec.has_attention(layer) or spec.has_recurrence(layer):
        normed = weights.norm("attention_norm", hidden, spec.norm) if block.has_input_norms else hidden
        if block.norms_stream:
            hidden = normed
        if spec.recurrence is not None and spec.has_recurrence(layer):
            attended = recurrence(spec, spec.recurrence, weights, layer, normed)
        if spec.has_attention(layer):
            attended = attended + attention(spec, weights, layer, normed)
        if block.has_output_norms:
            attended = weights.norm("attention_output_norm", attended, spec.norm)
        if not block.is_parallel:
            hidden = block.stream_scale * hidden + block.residual_scale * attended
    if not spec.has_mlp(layer):
        return hidden
    if not block.shares_norm:
        normed = weights.norm("mlp_norm", hidden, spec.norm) if block.has_input_norms else hidden
    if block.norms_stream:
        hidden = normed
    inner = _mlp(spec, weights, layer, normed)
    if block.has_output_norms:
        inner = weights.norm("mlp_output_norm", inner, spec.norm)
    hidden = block.stream_scale * hidden + block.residual_scale * inner
    return hidden + block.residual_scale * attended if block.is_parallel else hidden


def _mlp(spec: ModelSpec, weights: LayerWeights, layer: int, x: Tensor) -> Tensor:
    if spec.moe is not None and has_experts(spec, layer):
        return mixture(spec, spec.moe, weights, x)
    is_gated = spec.mlp.is_gated
    inner = weights.linear("mlp.gate_up" if is_gated else "mlp.up", x)
    if is_gated and (spec.mlp.gate_scale != 1 or spec.mlp.up_scale != 1):
        gate, up = inner.chunk(2, dim=-1)
        inner = torch.cat((spec.mlp.gate_scale * gate, spec.mlp.up_scale * up), dim=-1)
    return weights.linear("mlp.down", activate(spec.mlp.activation, inner, is_gated=is_gated))
