"""DBRX: LayerNorm without bias, clipped q, k and v, and experts stacked in three matrices."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, decoder_spec, reject_unless
from lmdeploy.turbomind.families.experts import joined_experts
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope
from lmdeploy.turbomind.spec import AttentionSpec, MlpSpec, ModelSpec, MoeSpec, NormSpec, RouterSpec

_NORM_EPS = 1e-5  # torch.nn.LayerNorm's


def config(raw: Mapping[str, Any]) -> Any:
    """Return the ``DbrxConfig``; files before those of ``transformers`` have the activation's name alone."""
    from transformers import DbrxConfig

    ffn = raw.get("ffn_config")
    if isinstance(ffn, Mapping) and isinstance(ffn.get("ffn_act_fn"), str):
        raw = {**raw, "ffn_config": {**ffn, "ffn_act_fn": {"name": ffn["ffn_act_fn"]}}}
    return DbrxConfig.from_dict(dict(raw))


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    attention, ffn = config.attn_config, config.ffn_config
    power = ffn.moe_normalize_expert_weights
    reject_unless(power in (None, 1), f"moe_normalize_expert_weights {power}")
    head_dim = config.d_model // config.n_heads
    return decoder_spec(
        config,
        checkpoint,
        num_kv_heads=attention.kv_n_heads,
        intermediate_size=ffn.ffn_hidden_size,
        norm=NormSpec(_NORM_EPS, kind="layer"),
        mlp=MlpSpec(activation_of(ffn.ffn_act_fn.get("name", "silu"))),
        attention=AttentionSpec(scale=head_dim**-0.5, qkv_clip=float(attention.clip_qkv or 0)),
        ropes=(default_rope(float(attention.rope_theta), head_dim),),
        moe=MoeSpec(ffn.moe_num_experts, ffn.moe_top_k, ffn.ffn_hidden_size, RouterSpec(normalizes=power == 1)),
    )


LAYOUT = Layout(
    embedding="transformer.wte",
    final_norm="transformer.norm_f",
    layer="transformer.blocks.{}.",
    attention_norm="norm_attn_norm.norm_1",
    mlp_norm="norm_attn_norm.norm_2",
    qkv="norm_attn_norm.attn.Wqkv",
    o="norm_attn_norm.attn.out_proj",
    experts=lambda spec, prefix: joined_experts(spec, f"{prefix}ffn."),
)
FAMILY = Family(
    ("DbrxForCausalLM",), spec, LAYOUT.tensors, config, sizes=("vocab_size", "d_model", "n_layers", "n_heads")
)
