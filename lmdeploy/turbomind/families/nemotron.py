"""Nemotron-4, Minitron and Nemotron-H."""

from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    reject_unless,
)
from lmdeploy.turbomind.families.deepseek import corrected_router
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.gated_delta import MIXERS
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mamba import mamba_spec, mamba_tensors
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, MoeSpec, NormSpec


# Nemotron-4 and Minitron: LayerNorm whose weights start at zero, a plain MLP of squared ReLU, half a head rotated.
def nemotron_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.norm_eps, kind="layer", offset=1.0, bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=config.mlp_bias),
        attention=attention_spec(config, qkv_bias=config.attention_bias, o_bias=config.attention_bias),
    )


NEMOTRON = Family(("NemotronForCausalLM",), nemotron_spec, Layout().tensors)


# Nemotron-H and 3: each layer is Mamba-2, attention without rotation, a plain MLP of squared ReLU, or experts.
NEMOTRON_H_SIZES = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")


def nemotron_h_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    kinds = config.layer_types
    config.hidden_act = config.mamba_hidden_act
    moe = None
    if "moe" in kinds:
        reject_unless(config.moe_latent_size is None, f"moe_latent_size {config.moe_latent_size}")
        reject_unless(not config.mlp_bias, "mlp_bias with experts")
        moe = MoeSpec(
            num_experts=config.n_routed_experts,
            experts_per_token=config.num_experts_per_tok,
            intermediate_size=config.moe_intermediate_size,
            router=corrected_router(config),
            layers=tuple(kind == "moe" for kind in kinds),
            shared_intermediate_size=config.moe_shared_expert_intermediate_size,
        )
    recurrence = mamba_spec(
        config,
        num_heads=config.mamba_num_heads,
        num_key_heads=config.n_groups,
        key_dim=config.ssm_state_size,
        value_dim=config.mamba_head_dim,
        conv_kernel=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        min_step=float(getattr(config, "time_step_min", 0.0)),  # its modeling code takes this, not time_step_limit's
    )
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.layer_norm_epsilon),
        mlp=MlpSpec(activation_of(config.mlp_hidden_act), is_gated=False, bias=config.mlp_bias),
        attention=attention_spec(config, windows=()),
        ropes=(),
        moe=moe,
        layer_mixers=tuple(MIXERS.get(kind, "none") for kind in kinds),
        layer_mlps=tuple(kind not in MIXERS for kind in kinds),
        recurrence=recurrence if "linear_attention" in kinds else None,
    )


NEMOTRON_H_LAYOUT = Layout(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    attention_norm="norm",
    mlp_norm="norm",
    q="mixer.q_proj",
    k="mixer.k_proj",
    v="mixer.v_proj",
    o="mixer.o_proj",
    up="mixer.up_proj",
    down="mixer.down_proj",
    experts=ExpertNames(
        router="mixer.gate",
        correction="mixer.gate.e_score_correction_bias",
        up="mixer.experts.{}.up_proj",
        down="mixer.experts.{}.down_proj",
        shared="mixer.shared_experts.{}_proj",
    ).tensors,
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mixer."),
)
NEMOTRON_H = Family(("NemotronHForCausalLM",), nemotron_h_spec, NEMOTRON_H_LAYOUT.tensors, sizes=NEMOTRON_H_SIZES)
