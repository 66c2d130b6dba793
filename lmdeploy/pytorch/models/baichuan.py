"""Baichuan and Baichuan2: Llama with one tensor for queries, keys and values; those of 13B attend by ALiBi."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, Rotation
from lmdeploy.pytorch.nn import Attention
from lmdeploy.pytorch.step_context import StepContextManager

# The vocabulary of Baichuan2, whose output layer is normalised; the config has no other mark of it.
_BAICHUAN2_VOCAB = 125696


class BaichuanAttention(LlamaAttention):
    """The attention of a layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        self._rotates = not config.attends_by_alibi
        if config.attends_by_alibi:
            heads = config.num_attention_heads
            self.attn_fwd = Attention(heads, config.hidden_size // heads, alibi=True)

    def rotate(self, query: torch.Tensor, key: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys as the cache keeps them."""
        return super().rotate(query, key, rotation) if self._rotates else (query, key)


class BaichuanDecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = BaichuanAttention


class BaichuanForCausalLM(LlamaForCausalLM):
    """Baichuan, with its head."""

    layer_class = BaichuanDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        config.attends_by_alibi = getattr(config, "max_position_embeddings", None) is None
        if config.attends_by_alibi:
            config.max_position_embeddings = config.model_max_length
        config.num_key_value_heads = config.num_attention_heads
        super().__init__(config, ctx_mgr, dtype, device)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        if name == "lm_head.weight" and self.config.vocab_size == _BAICHUAN2_VOCAB and tensor.is_floating_point():
            tensor = functional.normalize(tensor.float()).to(tensor.dtype)
        super().load_one(parameters, name.replace(".W_pack.", ".qkv_proj."), tensor)
