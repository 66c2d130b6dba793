"""A Llama whose weights are drawn where it runs: nothing is read, however large it is."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lmdeploy.pytorch.models.llama import LlamaForCausalLM

_SPREAD = 0.02


class RandomLlama(LlamaForCausalLM):
    """As the PyTorch engine builds it for ``custom_module_map``."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Draw matrices, and set norms to 1."""
        del weights
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=_SPREAD)
            else:
                parameter.data.fill_(1.0)
