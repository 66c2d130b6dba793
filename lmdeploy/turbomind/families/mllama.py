"""Llama 3.2 Vision as a model of texts: a prompt without pictures skips the layers that look at them."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, rows_of
from lmdeploy.turbomind.spec import ModelSpec

_EVERY, _FIRST = 5, 3  # layers of the checkpoint that look at pictures: 3, 8, 13, ...
_BEHIND_VOCABULARY = 8  # embeddings of what only pictures are written with
_PREFIX = "language_model."


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the text part's config."""
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig

    return MllamaTextConfig.from_dict(dict(raw["text_config"]))


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec, of the layers that are left."""
    looking = list(config.cross_attention_layers)
    if looking != list(range(_FIRST, config.num_hidden_layers, _EVERY)):
        raise UnsupportedModelError(
            f"Llama 3.2 Vision is supported with every fifth layer from layer 3 on looking at pictures, got {looking}"
        )
    config.num_hidden_layers -= len(looking)
    return decoder_spec(config, checkpoint)


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor."""
    layout = Layout(
        embedding=f"{_PREFIX}model.embed_tokens",
        final_norm=f"{_PREFIX}model.norm",
        lm_head=f"{_PREFIX}lm_head",
        layer=f"{_PREFIX}model.layers.{{}}.",
        number=lambda layer: layer + (layer + _EVERY - 1 - _FIRST) // (_EVERY - 1),
    )
    engine = layout.tensors(spec)
    rows = Load(f"{layout.embedding}.weight", (spec.vocab_size + _BEHIND_VOCABULARY, spec.hidden_size))
    return engine | {"token_embedding": rows_of(rows, 0, spec.vocab_size)}


FAMILY = Family(("MllamaForConditionalGeneration",), spec, tensors, config=read_config, sizes=())
