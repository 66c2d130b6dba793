"""Features of images that are added after the first layers of a model (DeepStack)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.step_context import get_step_ctx_manager
from lmdeploy.pytorch.text_part.tensors import text_tensors


def add_deeper_rows(model: Any, checkpoint: Path) -> None:
    """Let a model's first layers add what rows of images bring for them, where the text part takes it."""
    text = text_tensors(checkpoint)
    if text is None or not text.deeper_layers:
        return
    layers = next(
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == "layers" and isinstance(module, nn.ModuleList)
    )
    for number in range(text.deeper_layers):
        layers[number].register_forward_hook(partial(_add, number))


def _add(number: int, _: nn.Module, __: Any, output: Any) -> Any:
    step = get_step_ctx_manager().current_context()
    if step.deeper_embeddings is None:
        return output
    # Layers of ours return what is still to be added to the residual stream, and the stream.
    hidden = output if isinstance(output, torch.Tensor) else output[0]
    deeper = step.deeper_embeddings[:, number].to(hidden.dtype)
    hidden[step.input_embedding_indexing] = hidden[step.input_embedding_indexing] + deeper
    return output
