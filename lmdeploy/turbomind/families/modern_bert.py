"""ModernBERT: pre-norm layers, rotary positions, a gated MLP, and windows to both sides in two layers of three."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.encoders import names_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression
from lmdeploy.turbomind.spec import BlockSpec, EncoderSpec, MlpSpec, ModelSpec, NormSpec

LAYOUT = Layout(
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    final_norm="final_norm",
    layer="layers.{}.",
    attention_norm="attn_norm",
    mlp_norm="mlp_norm",
    qkv="attn.Wqkv",
    o="attn.Wo",
    gate_up="mlp.Wi",
    down="mlp.Wo",
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; half of ``local_attention`` is seen to each side, and the token itself."""
    kinds = ("full_attention", "sliding_attention")
    window, bias = config.local_attention // 2 + 1, config.attention_bias
    windows = tuple(window if kind == kinds[1] else 0 for kind in config.layer_types)
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=config.num_attention_heads,
        norm=NormSpec(config.norm_eps, kind="layer", bias=config.norm_bias),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias, windows=windows if any(windows) else ()),
        block=BlockSpec(skips_first_norm=True),
        mlp=MlpSpec(activation_of(config.hidden_activation), bias=config.mlp_bias),
        ropes=tuple(rope_of(config, kind) for kind in kinds),
        layer_ropes=tuple(kinds.index(kind) for kind in config.layer_types),
        has_embedding_norm=True,
        tied_embeddings=True,
        encoder=EncoderSpec(),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    return LAYOUT.tensors(spec)


FAMILY = Family(names_of("ModernBert"), spec, tensors)
