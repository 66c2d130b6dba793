"""Qwen 1 to 3.5, dense and with experts; Mellum 2 and Flint, whose layers are Qwen3's."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.experts import ExpertNames, moe_of, stacked_experts
from lmdeploy.turbomind.families.gated_delta import divided_tensors, gated_delta_fields, grouped_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import default_rope, ropes_by_kind
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec, MoeSpec, NormSpec, RouterSpec, StretchSpec

# Qwen 1: q, k and v in one matrix with biases; beyond the trained length dynamic NTK and logn attention.
QWEN_LAYOUT = Layout(
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    qkv="attn.c_attn",
    o="attn.c_proj",
    gate="mlp.w2",  # the published code activates w2
    up="mlp.w1",
    down="mlp.c_proj",
)


def qwen_read_config(raw: Mapping[str, Any]) -> SimpleNamespace:
    """Return the config in the names that most architectures use."""
    return SimpleNamespace(
        raw=raw,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"] // 2,  # of gate and up together
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw["num_attention_heads"],
        head_dim=raw["kv_channels"],
        max_position_embeddings=raw["max_position_embeddings"],
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
    )


def qwen_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    raw = config.raw
    trained = raw["seq_length"]
    rope = default_rope(raw.get("rotary_emb_base", 10000.0), int(config.head_dim * raw.get("rotary_pct", 1.0)))
    if raw.get("use_dynamic_ntk"):
        rope = dataclasses.replace(rope, stretch=StretchSpec("qwen", trained))
    bias = not raw.get("no_bias", True)
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(raw["layer_norm_epsilon"]),
        mlp=MlpSpec("silu", bias=bias),
        attention=attention_spec(
            config, qkv_bias=True, o_bias=bias, logn_length=trained if raw.get("use_logn_attn") else 0
        ),
        ropes=(rope,),
    )


QWEN = Family(
    ("QWenLMHeadModel",),
    qwen_spec,
    QWEN_LAYOUT.tensors,
    config=qwen_read_config,
    sizes=(
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "kv_channels",
        "seq_length", "max_position_embeddings",
    ),
)  # fmt: skip


# Qwen1.5, Qwen2, Qwen2.5: Llama's tensors with biases of q, k and v.
def qwen2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(config, checkpoint, attention=attention_spec(config, qkv_bias=True))


QWEN2 = Family(("Qwen2ForCausalLM",), qwen2_spec, Layout().tensors)


# Qwen1.5-MoE and Qwen2-MoE: some layers have experts, and a gated one that every token goes to.
def moe_spec(config: Any, *, normalizes: bool | None = None) -> MoeSpec:
    """Return the experts of a config with Qwen's names, without a shared one.

    ``normalizes`` stands in for ``norm_topk_prob``, where configs have none.
    """
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    return MoeSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=config.norm_topk_prob if normalizes is None else normalizes),
        layers=tuple(i not in dense and (i + 1) % step == 0 for i in range(config.num_hidden_layers)),
    )


def qwen2_moe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    moe = dataclasses.replace(
        moe_spec(config), shared_intermediate_size=config.shared_expert_intermediate_size, has_shared_gate=True
    )
    return decoder_spec(config, checkpoint, attention=attention_spec(config, qkv_bias=config.qkv_bias), moe=moe)


QWEN2_MOE_LAYOUT = Layout(experts=ExpertNames(shared="mlp.shared_expert.{}_proj").tensors)
QWEN2_MOE = Family(("Qwen2MoeForCausalLM",), qwen2_moe_spec, QWEN2_MOE_LAYOUT.tensors)


# Qwen3: queries and keys are normed by head.
def qwen3_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    bias = config.attention_bias
    attention = attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="head")
    return decoder_spec(config, checkpoint, attention=attention, **fields)


QWEN3 = Family(("Qwen3ForCausalLM",), qwen3_spec, Layout().tensors)


# Qwen3-MoE: Qwen3, some or all of its layers with experts.
QWEN3_MOE = Family(
    ("Qwen3MoeForCausalLM",),
    lambda config, checkpoint: qwen3_spec(config, checkpoint, moe=moe_spec(config)),
    Layout().tensors,
)


# Mellum 2: Qwen3-MoE with windows in some layers, which have a rotation of their own.
def mellum_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    config.decoder_sparse_step = 1
    config.mlp_only_layers = [i for i, kind in enumerate(config.mlp_layer_types) if kind == "dense"]
    return qwen3_spec(config, checkpoint, moe=moe_spec(config), **ropes_by_kind(config))


MELLUM = Family(("MellumForCausalLM",), mellum_spec, Layout().tensors)


# Flint: Qwen3-MoE with sinks, rotation in layers with a window alone, a sigmoid router and a shared expert.
def flint_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    experts = moe_spec(config)
    moe = dataclasses.replace(
        experts,
        router=dataclasses.replace(experts.router, score="sigmoid"),
        shared_intermediate_size=config.shared_expert_intermediate_size,
    )
    whole = qwen3_spec(
        config,
        checkpoint,
        moe=moe,
        layer_ropes=tuple(0 if kind == "sliding_attention" else -1 for kind in config.layer_types),
    )
    return dataclasses.replace(whole, attention=dataclasses.replace(whole.attention, has_sinks=True))


FLINT_LAYOUT = dataclasses.replace(QWEN2_MOE_LAYOUT, sinks="self_attn.softmax_offset")
FLINT = Family(("FlintForCausalLM",), flint_spec, FLINT_LAYOUT.tensors)


# The text part of Qwen3-VL with experts: Qwen3-MoE, whose experts are in one tensor a layer, laid out as [in, out].
def qwen3_vl_moe_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer."""
    stack, size = f"{prefix}mlp.experts.", (moe_of(spec).num_experts, spec.hidden_size)
    engine = stacked_experts(spec, f"{stack}gate_up_proj", f"{stack}down_proj", are_turned=True)
    return engine | {"moe.router.weight": Load(f"{prefix}mlp.gate.weight", size)}


QWEN3_VL_MOE = Family(
    ("Qwen3VLMoeTextModel",),
    lambda config, checkpoint: qwen3_spec(config, checkpoint, moe=moe_spec(config, normalizes=True)),
    Layout(experts=qwen3_vl_moe_experts).tensors,
)


# Qwen3-Next: gated delta networks, and gated attention in every fourth layer; experts with a gated shared one.
def dense_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec without experts."""
    bias = config.attention_bias
    attention = attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="head", has_output_gate=True)
    norm = NormSpec(config.rms_norm_eps, offset=1.0)
    return decoder_spec(config, checkpoint, attention=attention, norm=norm, **(gated_delta_fields(config) | fields))


def qwen3_next_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    moe = dataclasses.replace(
        moe_spec(config), shared_intermediate_size=config.shared_expert_intermediate_size, has_shared_gate=True
    )
    return dense_spec(config, checkpoint, moe=moe)


QWEN3_NEXT_LAYOUT = Layout(experts=ExpertNames(shared="mlp.shared_expert.{}_proj").tensors, recurrence=grouped_tensors)
QWEN3_NEXT = Family(("Qwen3NextForCausalLM",), qwen3_next_spec, QWEN3_NEXT_LAYOUT.tensors)


# Qwen3.5: gated delta networks, and gated attention in every fourth layer, as in Qwen3-Next.
QWEN3_5_LAYOUT = Layout(recurrence=divided_tensors)
QWEN3_5 = Family(("Qwen3_5ForCausalLM",), dense_spec, QWEN3_5_LAYOUT.tensors)


# Qwen3.5 with experts in every layer, and a gated one that every token goes to.
def qwen3_5_moe_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    moe = MoeSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(normalizes=True),
        shared_intermediate_size=config.shared_expert_intermediate_size,
        has_shared_gate=True,
    )
    # No layer has the dense MLP that this would be the size of.
    return dense_spec(config, checkpoint, moe=moe, intermediate_size=config.moe_intermediate_size)


QWEN3_5_MOE_LAYOUT = Layout(experts=ExpertNames(shared="mlp.shared_expert.{}_proj").tensors, recurrence=divided_tensors)
QWEN3_5_MOE = Family(
    ("Qwen3_5MoeForCausalLM",),
    qwen3_5_moe_spec,
    QWEN3_5_MOE_LAYOUT.tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "moe_intermediate_size"),
)
