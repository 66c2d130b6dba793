"""Falcon: LayerNorm, attention and MLP side by side in most, one tensor for queries, keys and values; RW by ALiBi."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import LlamaAttention, Rotation
from lmdeploy.pytorch.models.stablelm import StableLmDecoderLayer, StableLmForCausalLM
from lmdeploy.pytorch.nn import Attention, build_colwise_linear, build_rowwise_linear
from lmdeploy.pytorch.step_context import StepContextManager
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight

# What tensors are called, and where they go.
_NAMES = (
    ("transformer.word_embeddings.", "model.embed_tokens."),
    ("transformer.ln_f.", "model.norm."),
    ("transformer.h.", "model.layers."),
    (".self_attention.query_key_value.", ".self_attn.qkv_proj."),
    (".self_attention.dense.", ".self_attn.o_proj."),
    (".ln_attn.", ".input_layernorm."),
    (".ln_mlp.", ".post_attention_layernorm."),
)


class FalconAttention(LlamaAttention):
    """The attention of a layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        self._rotates = not config.alibi
        if config.alibi:
            heads = config.num_attention_heads
            size = config.hidden_size // heads
            # The distances are added before the scores are scaled.
            self.attn_fwd = Attention(
                heads, size, num_kv_heads=config.num_key_value_heads, alibi=True, alibi_factor=size**-0.5
            )

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        return bool(config.bias), bool(config.bias)

    def rotate(self, query: torch.Tensor, key: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys as the cache keeps them."""
        return super().rotate(query, key, rotation) if self._rotates else (query, key)


class FalconMLP(nn.Module):
    """The plain MLP of a layer."""

    def __init__(self, config: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__()
        hidden, size, bias = config.hidden_size, config.ffn_hidden_size, bool(config.bias)
        self.dense_h_to_4h = build_colwise_linear(hidden, size, bias, dtype=dtype, device=device, is_tp=True)
        self.dense_4h_to_h = build_rowwise_linear(size, hidden, bias, dtype=dtype, device=device, is_tp=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., hidden]``."""
        return self.dense_4h_to_h(functional.gelu(self.dense_h_to_4h(x)))


class FalconDecoderLayer(StableLmDecoderLayer):
    """A layer."""

    attention_class = FalconAttention

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the MLP of the layer."""
        return FalconMLP(config, dtype=dtype, device=device)


class FalconForCausalLM(StableLmForCausalLM):
    """Falcon, with its head."""

    layer_class = FalconDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if config.activation != "gelu":
            raise UnsupportedModelError(f"Falcon with activation {config.activation!r} is not supported")
        is_new = bool(config.new_decoder_architecture)
        config.has_two_norms = is_new and config.num_ln_in_parallel_attn != 1
        heads = config.num_attention_heads
        config.num_key_value_heads = config.num_kv_heads if is_new else 1 if config.multi_query else heads
        config.use_parallel_residual = is_new or config.parallel_attn
        config.layer_norm_eps = config.layer_norm_epsilon
        super().__init__(config, ctx_mgr, dtype, device)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        for theirs, ours in _NAMES:
            name = name.replace(theirs, ours)
        if ".qkv_proj." not in name:
            load_weight(parameters[name], tensor)
            return
        layer = self.get_submodule(name.rpartition(".")[0])
        # A key head lies after its queries, unless all have the same.
        layout = "default" if self.config.num_key_value_heads == 1 else "hgd"
        for shard, part in zip("qkv", layer.weight_spliter(tensor, layout=layout), strict=True):
            load_weight(parameters[name], part, shard_id=shard)
