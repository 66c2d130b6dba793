"""The text parts of Molmo in OLMo's names: 7B-D and 72B are Qwen2, 7B-O is OLMo 2, MolmoE is OLMoE."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, Rotation
from lmdeploy.pytorch.models.qwen2_moe import MoeForCausalLM, RoutedExperts
from lmdeploy.pytorch.models.utils.decoder_config import head_dim_of
from lmdeploy.pytorch.nn import RMSNorm
from lmdeploy.pytorch.nn.build_context import build_context
from lmdeploy.pytorch.step_context import StepContextManager
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight

# From a tensor's name to Llama's.
_NAMES = (
    (r"^model\.transformer\.wte\.embedding$", "model.embed_tokens.weight"),
    (r"^model\.transformer\.ff_out\.", "lm_head."),
    (r"^model\.transformer\.ln_f\.", "model.norm."),
    (r"^model\.transformer\.blocks\.", "model.layers."),
    (r"\.attn\.", "."),  # MolmoE nests its tensors in ``attn`` and ``mlp``
    (r"\.mlp\.ff_norm\.", ".ff_norm."),
    (r"\.([qk]_norm)\.", r".self_attn.\1."),
    (r"\.att_proj\.", ".self_attn.qkv_proj."),
    (r"\.attn_out\.", ".self_attn.o_proj."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ff_norm\.", ".post_attention_layernorm."),
    (r"\.ff_proj\.", ".mlp.gate_up_proj."),
    (r"\.ff_out\.", ".mlp.down_proj."),
)


class AllHeadsNorm(RMSNorm):
    """RMSNorm over all heads of a token, which ranks gather from each other."""

    def __init__(
        self, heads: int, head_dim: int, eps: float, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> None:
        super().__init__(heads * head_dim, eps, dtype=dtype, device=device)
        self._ranks = build_context().ranks
        self._own = self._ranks.slice_of(heads, "the number of heads that a norm is over")

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``[rows, heads, head_dim]``; ``residual`` is None."""
        normed = super().forward(self._ranks.gather(x.flatten(-2)))
        assert isinstance(normed, torch.Tensor)
        return normed.unflatten(-1, (-1, x.shape[-1]))[..., self._own, :]


class MolmoAttention(LlamaAttention):
    """The attention of a layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)

        def norm(heads: int) -> nn.Module:
            if not getattr(config, "attention_layer_norm", False):
                return nn.Identity()
            return AllHeadsNorm(heads, head_dim_of(config), config.rms_norm_eps, dtype, device)

        self.q_norm, self.k_norm = norm(config.num_attention_heads), norm(config.num_key_value_heads)

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        return bool(config.qkv_bias), False

    def norm_heads(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys as they are rotated."""
        return self.q_norm(query), self.k_norm(key)


class MolmoDecoderLayer(LlamaDecoderLayer):
    """A layer with norms before attention and MLP, or after them (``norm_after``)."""

    attention_class = MolmoAttention

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        self._norms_after = bool(getattr(config, "norm_after", False))

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotary_pos_emb: Rotation,
        past_key_value: Any,
        residual: torch.Tensor | None,
        attn_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the MLP's output, and the residual stream it is still to be added to."""
        if not self._norms_after:
            return super().forward(hidden_states, rotary_pos_emb, past_key_value, residual, attn_metadata)
        residual = hidden_states if residual is None else hidden_states + residual
        attended = self.self_attn(residual, rotary_pos_emb, past_key_value, attn_metadata)
        residual = residual + self.input_layernorm(attended)
        return self.post_attention_layernorm(self.mlp(residual)), residual


class MolmoForCausalLM(LlamaForCausalLM):
    """The text part of Molmo, with its head."""

    layer_class = MolmoDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        config.intermediate_size //= 2  # of gate and up together
        config.rms_norm_eps = config.layer_norm_eps
        super().__init__(config, ctx_mgr, dtype, device)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        name = _llama_name(name)
        if ".gate_up_proj." in name:
            for shard, part in zip((1, 0), tensor.chunk(2), strict=True):  # up comes first
                load_weight(parameters[name], part, shard_id=shard)
        else:
            super().load_one(parameters, name, tensor)


class MolmoEDecoderLayer(MolmoDecoderLayer):
    """A layer with experts."""

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the experts of the layer."""
        return RoutedExperts(config, dtype=dtype, device=device)


class MolmoEForCausalLM(MoeForCausalLM):
    """The text part of MolmoE, with its head."""

    layer_class = MolmoEDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        config.rms_norm_eps, config.norm_topk_prob = config.layer_norm_eps, False
        config.num_experts, config.num_experts_per_tok = config.moe_num_experts, config.moe_top_k
        config.moe_intermediate_size = config.intermediate_size
        super().__init__(config, ctx_mgr, dtype, device)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        super().load_one(parameters, _llama_name(name), tensor)


def _llama_name(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name
