"""Llama 3.2 Vision: a Llama with layers between that look at images; a prompt without images passes them by."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, rows_of
from lmdeploy.turbomind.spec import ImagesSpec, ModelSpec

_BEHIND_VOCABULARY = 8  # embeddings of what only images are written with
_PREFIX = "language_model."


def read_config(raw: Mapping[str, Any]) -> Any:
    """Return the text part's config."""
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig

    return MllamaTextConfig.from_dict(dict(raw["text_config"]))


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec, which counts layers without those that look at images."""
    cross_layers = sorted(config.cross_attention_layers)
    config.num_hidden_layers -= len(cross_layers)
    in_front_of = tuple(layer - before for before, layer in enumerate(cross_layers))
    return decoder_spec(config, checkpoint, images=ImagesSpec(cross_layers=in_front_of))


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    assert spec.images is not None
    in_front_of = spec.images.cross_layers
    layout = Layout(
        embedding=f"{_PREFIX}model.embed_tokens",
        final_norm=f"{_PREFIX}model.norm",
        lm_head=f"{_PREFIX}lm_head",
        layer=f"{_PREFIX}model.layers.{{}}.",
        number=lambda layer: layer + sum(index <= layer for index in in_front_of),
    )
    engine = layout.tensors(spec)
    rows = Load(f"{layout.embedding}.weight", (spec.vocab_size + _BEHIND_VOCABULARY, spec.hidden_size))
    engine["token_embedding"] = rows_of(rows, 0, spec.vocab_size)
    for index, layer in enumerate(in_front_of):
        stored = _cross_layer(spec, layout.layer.format(layer + index))
        engine |= {f"cross_layers.{index}.{name}": expression for name, expression in stored.items()}
    return engine


def _cross_layer(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    hidden, size = spec.hidden_size, spec.intermediate_size
    queries, keys = (heads * spec.head_dim for heads in (spec.num_heads, spec.num_kv_heads))

    def load(name: str, *shape: int) -> Load:
        return Load(prefix + name, shape)

    gate, up = (load(f"mlp.{name}_proj.weight", size, hidden) for name in ("gate", "up"))

    return {
        "attention_norm.weight": load("input_layernorm.weight", hidden),
        "attention.q.weight": load("cross_attn.q_proj.weight", queries, hidden),
        "attention.kv.weight": concat(
            load("cross_attn.k_proj.weight", keys, hidden), load("cross_attn.v_proj.weight", keys, hidden)
        ),
        "attention.q_norm.weight": load("cross_attn.q_norm.weight", spec.head_dim),
        "attention.k_norm.weight": load("cross_attn.k_norm.weight", spec.head_dim),
        "attention.o.weight": load("cross_attn.o_proj.weight", hidden, queries),
        "attention.gate": load("cross_attn_attn_gate", 1),
        "mlp_norm.weight": load("post_attention_layernorm.weight", hidden),
        "mlp.gate_up.weight": concat(gate, up),
        "mlp.down.weight": load("mlp.down_proj.weight", hidden, size),
        "mlp.gate": load("cross_attn_mlp_gate", 1),
    }


FAMILY = Family(("MllamaForConditionalGeneration",), spec, tensors, config=read_config, sizes=())
