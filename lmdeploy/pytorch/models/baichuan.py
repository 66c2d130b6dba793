"""Baichuan and Baichuan2 of 7B: Llama with one tensor for queries, keys and values; Baichuan2 normalises its head."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import LlamaForCausalLM
from lmdeploy.pytorch.step_context import StepContextManager

# The vocabulary of Baichuan2, whose output layer is normalised; the config has no other mark of it.
_BAICHUAN2_VOCAB = 125696


class BaichuanForCausalLM(LlamaForCausalLM):
    """Baichuan, with its head."""

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if getattr(config, "max_position_embeddings", None) is None:
            raise UnsupportedModelError(
                "Baichuan of 13B attends by ALiBi, which the PyTorch engine does not have; the TurboMind engine does"
            )
        config.num_key_value_heads = config.num_attention_heads
        super().__init__(config, ctx_mgr, dtype, device)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        if name == "lm_head.weight" and self.config.vocab_size == _BAICHUAN2_VOCAB and tensor.is_floating_point():
            tensor = functional.normalize(tensor.float()).to(tensor.dtype)
        super().load_one(parameters, name.replace(".W_pack.", ".qkv_proj."), tensor)
