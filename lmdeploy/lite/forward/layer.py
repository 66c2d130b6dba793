"""A decoder layer."""

import torch
from torch import Tensor

from lmdeploy.lite.forward.attention import attention
from lmdeploy.lite.forward.experts import mixture
from lmdeploy.lite.forward.parts import LayerWeights, activate, xielu
from lmdeploy.lite.forward.recurrence import recurrence
from lmdeploy.turbomind.families.experts import has_dense_mlp, has_experts
from lmdeploy.turbomind.spec import ModelSpec


class Carried:
    """Layout of a token's row between layers: the residual stream, then values for later layers.

    That is the further input of each layer, then keys and values of the layers that others attend to.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._hidden = spec.hidden_size
        self._input = spec.layer_input.size if spec.layer_input else 0
        self._sources: dict[int, int] = {}
        self.width = spec.hidden_size + spec.num_layers * self._input  # numbers of a row
        for source in sorted({spec.keys_of(layer) for layer in range(spec.num_layers)} - {-1}):
            attention = spec.attention_of(source)
            self._sources[source] = self.width
            self.width += attention.num_kv_heads * (attention.head_dim + attention.value_dim)

    def stream(self, rows: Tensor) -> Tensor:
        """Return the residual stream ``[..., hidden]`` of rows."""
        return rows[..., : self._hidden]

    def input(self, rows: Tensor, layer: int) -> Tensor:
        """Return the further input ``[..., size]`` of a layer."""
        return rows[..., self._hidden + layer * self._input :][..., : self._input]

    def keys_and_values(self, spec: ModelSpec, rows: Tensor, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return the keys and values that a layer attends to, where they are another one's."""
        source = spec.keys_of(layer)
        if source < 0:
            return None
        attention = spec.attention_of(source)
        sizes = (attention.num_kv_heads * attention.head_dim, attention.num_kv_heads * attention.value_dim)
        k, v = rows[..., self._sources[source] :][..., : sum(sizes)].split(sizes, dim=-1)
        return k.unflatten(-1, (attention.num_kv_heads, -1)).transpose(1, 2), v.unflatten(
            -1, (attention.num_kv_heads, -1)
        ).transpose(1, 2)

    def joined(self, rows: Tensor, stream: Tensor, layer: int, made: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the rows after a layer: its stream, and its keys and values if others attend to them."""
        if self.width == self._hidden:
            return stream
        rows = torch.cat((stream, rows[..., self._hidden :]), -1)
        if made is not None and layer in self._sources:
            both = torch.cat([part.transpose(1, 2).flatten(2) for part in made], -1)
            rows[..., self._sources[layer] :][..., : both.shape[-1]] = both
        return rows


def run_layer(spec: ModelSpec, weights: LayerWeights, layer: int, rows: Tensor) -> Tensor:
    """Return a layer's output for ``[batch, tokens, Carried.width]``."""
    block, carried = spec.block_of(layer), Carried(spec)
    hidden = carried.stream(rows)
    mixed, made = torch.zeros_like(hidden), None
    if spec.has_attention(layer) or spec.has_recurrence(layer):
        normed = weights.norm("attention_norm", hidden, spec.norm) if block.has_input_norms else hidden
        if block.norms_stream:
            hidden = normed
        if spec.recurrence is not None and spec.has_recurrence(layer):
            mixed = recurrence(spec, spec.recurrence, weights, layer, normed)
        if spec.has_attention(layer):
            part, made = attention(spec, weights, layer, normed, carried.keys_and_values(spec, rows, layer))
            mixed = mixed + part
        if block.has_output_norms:
            mixed = weights.norm("attention_output_norm", mixed, spec.norm, block.output_norm_eps or None)
        if not block.is_parallel:
            hidden = block.stream_scale * hidden + block.residual_scale * mixed
    if not spec.has_mlp(layer):
        return carried.joined(rows, hidden, layer, made)
    if not block.shares_norm:
        normed = weights.norm("mlp_norm", hidden, spec.norm) if block.has_input_norms else hidden
    if block.norms_stream:
        hidden = normed
    inner = _mlp(spec, weights, layer, normed, hidden)
    if block.has_output_norms:
        inner = weights.norm("mlp_output_norm", inner, spec.norm, block.output_norm_eps or None)
    hidden = block.stream_scale * hidden + block.residual_scale * inner
    if block.is_parallel:
        hidden = hidden + block.residual_scale * mixed
    if spec.layer_input is not None:
        hidden = hidden + _input_branch(spec, weights, hidden, carried.input(rows, layer))
    if block.has_layer_scale:
        hidden = hidden * weights.tensors["scale"]
    return carried.joined(rows, hidden, layer, made)


def _mlp(spec: ModelSpec, weights: LayerWeights, layer: int, x: Tensor, stream: Tensor) -> Tensor:
    """Return the MLP's output for its normed input; experts alongside a dense MLP read the residual stream."""
    if spec.moe is None or not has_experts(spec, layer):
        return _dense_mlp(spec, weights, x)
    if not has_dense_mlp(spec, layer):
        return mixture(spec, spec.moe, weights, x, stream, layer)
    dense = weights.norm("dense_output_norm", _dense_mlp(spec, weights, x), spec.norm)
    experts = mixture(spec, spec.moe, weights, weights.norm("expert_norm", stream, spec.norm), stream, layer)
    return dense + weights.norm("expert_output_norm", experts, spec.norm)


def _dense_mlp(spec: ModelSpec, weights: LayerWeights, x: Tensor) -> Tensor:
    is_gated = spec.mlp.is_gated
    inner = weights.linear("mlp.gate_up" if is_gated else "mlp.up", x)
    if is_gated and (spec.mlp.gate_scale != 1 or spec.mlp.up_scale != 1):
        gate, up = inner.chunk(2, dim=-1)
        inner = torch.cat((spec.mlp.gate_scale * gate, spec.mlp.up_scale * up), dim=-1)
    if spec.mlp.is_xielu:
        stored = (weights.tensors[f"mlp.xielu.{name}"] for name in ("positive", "negative", "linear"))
        return weights.linear("mlp.down", xielu(inner, *stored))
    return weights.linear("mlp.down", activate(spec.mlp.activation, inner, is_gated=is_gated))


def _input_branch(spec: ModelSpec, weights: LayerWeights, hidden: Tensor, branch: Tensor) -> Tensor:
    gate = activate(spec.mlp.activation, weights.linear("input.gate", hidden), is_gated=False)
    return weights.norm("input.norm", weights.linear("input.project", gate * branch), spec.norm)
