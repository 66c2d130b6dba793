"""Gemma 1, 2, 3 (text), EmbeddingGemma: norm weights start at 0, embeddings are scaled, heads have their own size."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression, renamed
from lmdeploy.turbomind.spec import BlockSpec, EncoderSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec

_LAYOUT = Layout()
_LAYOUT_WITH_OUTPUT_NORMS = Layout(
    attention_output_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec; a config names the features that its version of Gemma has."""
    version = {"GemmaForCausalLM": 1, "Gemma2ForCausalLM": 2}.get(checkpoint.architecture, 3)
    bias = config.attention_bias
    attention = {"qkv_bias": bias, "o_bias": bias}
    fields: dict[str, Any] = {}
    if version >= 2:
        attention |= {"scale": config.query_pre_attn_scalar**-0.5, "softcap": config.attn_logit_softcapping or 0.0}
        fields |= {
            "block": BlockSpec(has_output_norms=True),
            "output": OutputSpec(softcap=config.final_logit_softcapping or 0.0),
        }
    if version == 3:
        attention["qk_norm"] = "head"
        kinds = ("full_attention", "sliding_attention")
        fields["ropes"] = tuple(rope_of(config, kind) for kind in kinds)
        fields["layer_ropes"] = tuple(kinds.index(kind) for kind in config.layer_types)
    if getattr(config, "use_bidirectional_attention", None):  # EmbeddingGemma
        fields |= {"encoder": EncoderSpec(), "tied_embeddings": True}
    # Old Gemma configs say gelu and mean its approximation.
    activation = "gelu_tanh" if version == 1 else activation_of(config.hidden_activation)
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.rms_norm_eps, offset=1.0),
        mlp=MlpSpec(activation),
        attention=attention_spec(config, **attention),
        embedding_scale=config.hidden_size**0.5,
        **fields,
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; those of encoders without a prefix."""
    engine = (_LAYOUT_WITH_OUTPUT_NORMS if spec.block.has_output_norms else _LAYOUT).tensors(spec)
    if not spec.encoder:
        return engine
    return {
        name: renamed(expression, lambda stored: stored.removeprefix("model.")) for name, expression in engine.items()
    }


FAMILY = Family(("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3TextModel"), spec, tensors)
