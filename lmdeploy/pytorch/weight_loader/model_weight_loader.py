"""Weight loader of model classes: helpers of ``load_weights``, and its caller."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import CheckpointError
from lmdeploy.pytorch.adapted_layers import current_trace
from lmdeploy.pytorch.quantized_weights import quantized_weights, require_numbers
from lmdeploy.pytorch.text_part.tensors import text_tensors
from lmdeploy.turbomind.safetensors_index import read_checkpoint


def load_weight(param: nn.Parameter, loaded_weight: torch.Tensor, **shard: Any) -> None:
    """Copy a tensor of the checkpoint into a parameter, or the part of it that this rank has.

    Raises `ValueError` if the shapes differ. ``param``: with a ``weight_loader`` of its own (``weight_loader(param,
    loaded_weight, **shard)``), as the layers of `lmdeploy.pytorch.nn` have it, or without. ``loaded_weight``: the
    tensor. ``shard``: which part of a joined parameter it is: ``shard_id``, and ``expert_id`` of experts.
    """
    loader = getattr(param, "weight_loader", None)
    if loader is not None:
        loader(param, loaded_weight, **shard)
    else:
        default_weight_loader(param, loaded_weight, **shard)


def default_weight_loader(param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
    """Copy a tensor as it is."""
    require_numbers(loaded_weight)
    if param.shape != loaded_weight.shape:
        raise ValueError(f"the checkpoint has {list(loaded_weight.shape)} where the model has {list(param.shape)}")
    param.data.copy_(loaded_weight)


def tensors_of(checkpoint: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the checkpoint's tensors, one at a time, file by file; of a text part's folder its own alone.

    Raises `CheckpointError` if there are no safetensors files, or one cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    text = text_tensors(checkpoint)
    index = read_checkpoint(checkpoint if text is None else text.checkpoint)
    if index.problems:
        raise CheckpointError(checkpoint, index.problems)
    for file in index.files:
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    if text is None or name in text.names:
                        yield name if text is None else text.names[name], tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(file, [f"it cannot be read ({error})"]) from error


def load_model_weights(model: nn.Module, checkpoint: Path) -> None:
    """Fill a model's parameters from a checkpoint with its own ``load_weights``.

    Raises `CheckpointError` if tensors and parameters do not fit each other, or a parameter is left empty.
    """
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    tracked = _Tracked(checkpoint)
    try:
        model.load_weights(tracked)
    except KeyError as error:
        problem = f"tensor {tracked.name} would go to parameter {error}, which the model does not have"
        raise CheckpointError(checkpoint, [problem]) from error
    except CheckpointError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(checkpoint, [f"{tracked.name}: {' '.join(str(error).split())}"]) from error
    quantized = quantized_weights(checkpoint)
    if quantized is not None:
        for name, module in model.named_modules():
            if hasattr(module, "load_quantized"):
                try:
                    module.load_quantized(quantized)
                except ValueError as error:
                    raise CheckpointError(checkpoint, [f"{name}: {error}"]) from error
    _tie(model)
    empty = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    if empty:
        raise CheckpointError(checkpoint, [f"{name} is not in the checkpoint, or not a number" for name in empty])


class _Tracked:
    """The tensors of a checkpoint, and which was handed out last."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self.name = "(none)"

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        trace = current_trace()
        quantized = quantized_weights(self._checkpoint)
        for name, tensor in chain(
            (entry for entry in tensors_of(self._checkpoint) if quantized is None or entry[0] not in quantized.hidden),
            () if quantized is None else quantized.indices(),
        ):
            self.name = name
            if trace is not None:
                trace.begin(name, tensor)
            yield name, tensor


def _tie(model: nn.Module) -> None:
    """Let the head have the embedding's weights, where the configuration says so."""
    if hasattr(model, "update_weights"):
        model.update_weights()
    elif getattr(model.config, "tie_word_embeddings", False) and hasattr(model, "get_input_embeddings"):
        model.lm_head.weight = model.get_input_embeddings().weight
