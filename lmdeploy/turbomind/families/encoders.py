"""Layers, architecture names and tensor names that families of encoders share."""

import re
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, renamed, walk
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex
from lmdeploy.turbomind.spec import BlockSpec, EncoderSpec, MlpSpec, ModelSpec, NormSpec

# Post-norm layers, as BERT has them, in terms of the engine's blocks.
#
# BERT adds what attention makes to the stream and takes the norm of the sum, and so does its MLP. So each norm is in
# front of the half that follows: the engine's blocks with ``norms_stream``, whose first norm is that of the embeddings
# and whose last norm is that of the last layer.
KINDS = ("Model", "ForSequenceClassification", "ForMaskedLM")


def names_of(*prefixes: str) -> tuple[str, ...]:
    """Return the architecture names of families whose names begin so."""
    return tuple(prefix + kind for prefix in prefixes for kind in KINDS)


def post_norm_spec(config: Any, checkpoint: Checkpoint, *, bias: bool = True, **fields: Any) -> ModelSpec:
    """Return the spec of an encoder with BERT's layers; what ``fields`` do not give is as BERT has it.

    ``bias``: whether the projections of attention have biases.
    """
    common: dict[str, Any] = {
        "num_kv_heads": config.num_attention_heads,
        "norm": NormSpec(getattr(config, "layer_norm_eps", 1e-12), kind="layer", bias=True),
        "attention": attention_spec(config, qkv_bias=bias, o_bias=bias, windows=()),
        "ropes": (),
        "block": BlockSpec(norms_stream=True),
        "tied_embeddings": True,
        **({} if "mlp" in fields else {"mlp": MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True)}),
        "encoder": EncoderSpec(token_types=getattr(config, "type_vocab_size", 0)),
    }
    return decoder_spec(config, checkpoint, **(common | fields))


def post_norm_tensors(
    spec: ModelSpec,
    layout: Layout,
    embedding_norm: str = "embeddings.LayerNorm",
    token_types: str = "embeddings.token_type_embeddings",
) -> dict[str, Expression]:
    """Return the engine tensors of such an encoder.

    ``layout``: names in the checkpoint; ``mlp_norm`` is the norm after attention, ``final_norm``, within a layer, that
    after the MLP. ``embedding_norm``: the norm of the embeddings.
    """
    engine = Layout.tensors(layout, spec)
    sources = [embedding_norm, *(layout.layer.format(i) + layout.final_norm for i in range(spec.num_layers))]
    names = [*(f"layers.{i}.attention_norm" for i in range(spec.num_layers)), "final_norm"]
    for name, source in zip(names, sources, strict=True):
        for part in ("weight", "bias"):
            engine[f"{name}.{part}"] = Load(f"{source}.{part}", (spec.hidden_size,))
    if spec.encoder and (count := spec.encoder.token_types):
        engine["token_types"] = Load(f"{token_types}.weight", (count, spec.hidden_size))
    return engine


# The names that encoders' tensors have in a checkpoint: with the model's prefix or without it.
_HEADS = re.compile(
    r"(^|\.)(pooler|classifier|pre_classifier|cls|lm_head|head|decoder|vocab_transform|vocab_layer_norm|vocab_projector)"
    r"\.|(^|\.)embeddings\.position_ids$|^linear\.weight$"
)
_OLDER = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def is_of_head(name: str) -> bool:
    """Return whether a tensor is one of what follows an encoder, such as a classifier, or of no use."""
    return bool(_HEADS.search(name))


def prefix_in(index: SafetensorsIndex, name: str) -> str:
    """Return the prefix of the tensor `name` in a checkpoint, such as ``bert.``; empty: no prefix, or no tensor."""
    ends = (name, _adapted(name))
    found = (stored.removesuffix(end) for end in ends for stored in index.tensors if stored.endswith(end))
    return min((prefix for prefix in found if not prefix or prefix.endswith(".")), key=len, default="")


def _adapted(name: str) -> str:
    """Return the name of a weight where adapters are stored alongside it (`lmdeploy.model_metadata.task_adapters`)."""
    return name.removesuffix("weight") + "parametrizations.weight.original"


def encoder_names(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> dict[str, Expression]:
    """Return the expressions of an encoder, maybe with a decoder's layers, with the names that a checkpoint has."""
    first = next(part.name for part in walk(tensors["token_embedding"]) if isinstance(part, Load))
    prefix = prefix_in(index, first.removeprefix("model."))

    def stored(name: str) -> str:
        full = prefix + name.removeprefix("model.")
        for newer, older in _OLDER.items():
            if full.endswith(newer) and full not in index.tensors:
                return full.removesuffix(newer) + older
        return _adapted(full) if _adapted(full) in index.tensors else full

    return {name: renamed(expression, stored) for name, expression in tensors.items()}
