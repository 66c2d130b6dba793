"""NanoChat: no weights in norms, norms after rotation, which turns the other way, and squared ReLU."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout, without_norm_weights
from lmdeploy.turbomind.manifest import Expression, concat, permute, reshape, rows_of
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, OutputSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    bias = config.attention_bias
    attention = attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="unit", norms_rotated=True)
    return decoder_spec(
        config,
        checkpoint,
        has_embedding_norm=True,
        attention=attention,
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False),
        output=OutputSpec(softcap=config.final_logit_softcapping or 0.0),
    )


def _tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the engine tensors: with the halves of a head swapped, its rotation turns the other way."""
    layout = Layout(embedding_norm="model.norm", up="mlp.fc1", down="mlp.fc2")
    engine = without_norm_weights(layout.tensors(spec))
    heads, size = spec.num_heads + spec.num_kv_heads, spec.head_dim
    for name, whole in engine.items():
        if ".attention.qkv." in name:
            rows, *inputs = whole.shape
            order = (1, 0, *range(2, 3 + len(inputs)))
            halves = permute(reshape(rows_of(whole, 0, heads * size), heads, 2, size // 2, *inputs), *order)
            swapped = permute(concat(rows_of(halves, 1, 2), rows_of(halves, 0, 1)), *order)
            engine[name] = concat(reshape(swapped, heads * size, *inputs), rows_of(whole, heads * size, rows))
    return engine


FAMILY = Family(("NanoChatForCausalLM",), spec, _tensors)
