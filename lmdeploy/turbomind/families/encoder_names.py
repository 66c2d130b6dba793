"""The names that encoders' tensors have in a checkpoint: with the model's prefix or without it."""

import re
from collections.abc import Mapping

from lmdeploy.turbomind.manifest import Expression, Load, renamed, walk
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

_HEADS = re.compile(
    r"(^|\.)(pooler|classifier|pre_classifier|cls|lm_head|head|decoder|vocab_transform|vocab_layer_norm|vocab_projector)"
    r"\.|(^|\.)embeddings\.position_ids$|^linear\.weight$"
)
_OLDER = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def is_of_head(name: str) -> bool:
    """Return whether a tensor is one of what follows an encoder, such as a classifier, or of no use."""
    return bool(_HEADS.search(name))


def prefix_in(index: SafetensorsIndex, name: str) -> str:
    """Return what is in front of the tensor `name` in a checkpoint, such as ``bert.``; empty: nothing, or no tensor."""
    ends = (name, _adapted(name))
    found = (stored.removesuffix(end) for end in ends for stored in index.tensors if stored.endswith(end))
    return min((prefix for prefix in found if not prefix or prefix.endswith(".")), key=len, default="")


def _adapted(name: str) -> str:
    """Return the name of a weight where adapters are stored alongside it (`lmdeploy.model_metadata.task_adapters`)."""
    return name.removesuffix("weight") + "parametrizations.weight.original"


def encoder_names(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> dict[str, Expression]:
    """Return the expressions of an encoder with the names that its tensors have in a checkpoint."""
    first = next(part.name for part in walk(tensors["token_embedding"]) if isinstance(part, Load))
    prefix = prefix_in(index, first)

    def stored(name: str) -> str:
        full = prefix + name
        for newer, older in _OLDER.items():
            if full.endswith(newer) and full not in index.tensors:
                return full.removesuffix(newer) + older
        return _adapted(full) if _adapted(full) in index.tensors else full

    return {name: renamed(expression, stored) for name, expression in tensors.items()}
