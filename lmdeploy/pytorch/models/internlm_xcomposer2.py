"""The text part of InternLM-XComposer2 and 2.5: InternLM2 with additional low-rank weights for image tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.models.internlm2 import InternLM2DecoderLayer, InternLM2ForCausalLM, llama_name
from lmdeploy.pytorch.models.utils.decoder_config import head_dim_of
from lmdeploy.pytorch.nn import build_colwise_linear, build_linear, build_qkv_proj, build_rowwise_linear
from lmdeploy.pytorch.nn.image_rows import LowRank, LowRankSum
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight
from lmdeploy.turbomind.families.internlm_xcomposer2 import LOW_RANK


class XComposer2DecoderLayer(InternLM2DecoderLayer):
    """A layer, whose low-rank weights are sharded like the weights they are added to."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        hidden, size, head_dim = config.hidden_size, config.intermediate_size, head_dim_of(config)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        given: dict[str, Any] = {"bias": False, "dtype": dtype, "device": device}

        def by_outputs(up: nn.Module) -> LowRank:
            return LowRank(build_linear(hidden, LOW_RANK, **given), up)

        def by_inputs(inputs: int) -> LowRankSum:
            down = build_rowwise_linear(inputs, LOW_RANK, is_tp=True, **given)
            return LowRankSum([LowRank(down, build_linear(LOW_RANK, hidden, **given))])

        qkv = build_qkv_proj(LOW_RANK, num_q_heads=heads, num_kv_heads=kv_heads, head_size=head_dim, **given)
        halves = [build_colwise_linear(LOW_RANK, size, is_tp=True, **given) for _ in range(2)]
        self.self_attn.qkv_proj.for_images = LowRankSum([by_outputs(qkv)])
        self.self_attn.o_proj.for_images = by_inputs(heads * head_dim)
        self.mlp.gate_up_proj.for_images = LowRankSum([by_outputs(half) for half in halves])
        self.mlp.down_proj.for_images = by_inputs(size)


class InternLMXComposer2ForCausalLM(InternLM2ForCausalLM):
    """The text part, with its head."""

    layer_class = XComposer2DecoderLayer

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        layer, _, matrix = name.partition(".Plora_")
        if not matrix:
            super().load_one(parameters, name, tensor)
            return
        linear = llama_name(f"{layer}.").replace(".gate_proj.", ".gate_up_proj.").replace(".up_proj.", ".gate_up_proj.")
        which = "down" if matrix.startswith("A") else "up"
        name = f"{linear}for_images.parts.{int(layer.endswith('.w3'))}.{which}.weight"
        if "qkv_proj" in name and which == "up":  # laid out as what it is added to
            super().load_one(parameters, name, tensor)
        else:
            load_weight(parameters[name], tensor)
