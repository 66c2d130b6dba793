"""From a step to what a model's ``forward`` takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.step_context import StepContext


def inputs_of(
    step: StepContext, past_key_values: list[Any], inputs_embeds: torch.Tensor | None, embedding: nn.Module
) -> dict[str, Any]:
    """Return the arguments of ``forward``; rows that the step brings embeddings for get these.

    Parameters
    ----------
    step
        What is to be run.
    past_key_values
        The cache of each layer.
    inputs_embeds
        Embeddings of all tokens, or None: those of the step's tokens.
    embedding
        Of tokens.
    """
    if step.input_embeddings is not None and len(step.input_embeddings):
        inputs_embeds = embeddings_of(step, embedding, inputs_embeds)
    return {
        "input_ids": step.input_ids,
        "position_ids": step.position_ids,
        "past_key_values": past_key_values,
        "attn_metadata": step.attn_metadata,
        "inputs_embeds": inputs_embeds,
    }


def embeddings_of(step: StepContext, embedding: nn.Module, inputs_embeds: torch.Tensor | None = None) -> torch.Tensor:
    """Return the embeddings ``[1, tokens, hidden]`` of a step that brings some itself; as `inputs_of`."""
    made: torch.Tensor = embedding(step.input_ids) if inputs_embeds is None else inputs_embeds
    assert step.input_embeddings is not None
    made[step.input_embedding_indexing] = step.input_embeddings.to(made.dtype)
    return made
