"""StableLM: LayerNorm, part of a head rotated, halves in parallel in some."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec, NormSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    is_parallel = config.use_parallel_residual
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.layer_norm_eps, kind="layer", bias=True),
        block=BlockSpec(is_parallel=is_parallel, shares_norm=is_parallel),
        attention=attention_spec(
            config, qkv_bias=config.use_qkv_bias, qk_norm="each_head" if config.qk_layernorm else "none"
        ),
    )


def tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the expression of each engine tensor; each head has a norm with its own name."""
    engine = _LAYOUT.tensors(spec)
    if spec.attention.qk_norm == "none":
        return engine
    for layer in range(spec.num_layers):
        for name, heads in (("q", spec.num_heads), ("k", spec.num_kv_heads)):
            norms = f"{_LAYOUT.layer.format(layer)}self_attn.{name}_layernorm.norms"
            weights = [Load(f"{norms}.{head}.weight", (spec.head_dim,)) for head in range(heads)]
            engine[f"layers.{layer}.attention.{name}_norm.weight"] = concat(*weights)
    return engine


_LAYOUT = Layout()
FAMILY = Family(("StableLmForCausalLM",), spec, tensors)
