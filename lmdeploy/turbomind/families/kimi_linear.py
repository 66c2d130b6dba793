"""Kimi Linear: Kimi delta attention, latent attention without rotation in some layers, DeepSeek-V3's experts."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, decoder_spec
from lmdeploy.turbomind.families.deepseek import corrected_router
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.gated_delta import MIXERS, recurrence_of
from lmdeploy.turbomind.families.latent import latent_attention
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape
from lmdeploy.turbomind.spec import ModelSpec, MoeSpec, RecurrenceSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    config.rope_parameters = {}  # by which latent attention scales scores of stretched positions
    rank = config.linear_head_dim
    return delta_spec(config, checkpoint, {"gate_rank": rank}, attention=latent_attention(config), ropes=())


def delta_spec(config: Any, checkpoint: Checkpoint, recurrence: dict[str, Any], **fields: Any) -> ModelSpec:
    """Return the spec of a model with Kimi delta attention, whose further fields are ``recurrence``."""
    moe = MoeSpec(
        num_experts=config.num_local_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=corrected_router(config),
        layers=tuple(kind == "sparse" for kind in config.mlp_layer_types),
        shared_intermediate_size=config.n_shared_experts * config.moe_intermediate_size,
    )
    return decoder_spec(
        config,
        checkpoint,
        moe=moe,
        layer_mixers=tuple(MIXERS.get(kind, kind) for kind in config.layer_types),
        recurrence=RecurrenceSpec(
            "kimi_delta",
            num_heads=config.linear_num_heads,
            num_key_heads=config.linear_num_heads,
            key_dim=config.linear_head_dim,
            value_dim=config.linear_head_dim,
            conv_kernel=config.linear_conv_kernel_dim,
            gate="sigmoid",
            **recurrence,
        ),
        **fields,
    )


GATES = {"decay_down": "f_a", "decay_up": "f_b", "gate_down": "g_a", "gate_up": "g_b"}


def recurrence(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of Kimi delta attention."""
    return delta_tensors(spec, f"{prefix}self_attn.", GATES, (1, 1, recurrence_of(spec).num_heads, 1))


def delta_tensors(spec: ModelSpec, prefix: str, names: dict[str, str], logs: tuple[int, ...]) -> dict[str, Expression]:
    """Return the engine tensors; ``names``: what makes decays and the gate; ``logs``: the shape of ``A_log``."""
    recurrence, hidden = recurrence_of(spec), spec.hidden_size
    size, rank = recurrence.num_heads * recurrence.key_dim, recurrence.gate_rank

    def matrix(name: str, rows: int, inputs: int) -> Expression:
        return Load(f"{prefix}{name}_proj.weight", (rows, inputs))

    convolutions = [Load(f"{prefix}{name}_conv1d.weight", (size, 1, recurrence.conv_kernel)) for name in "qkv"]
    shapes = {name: (rank, hidden) if name.endswith("down") else (size, rank or hidden) for name in names}
    return {
        "recurrence.in.weight": concat(*(matrix(name, size, hidden) for name in "qkv")),
        "recurrence.conv": concat(*(reshape(kernel, size, recurrence.conv_kernel) for kernel in convolutions)),
        "recurrence.gates.weight": matrix("b", recurrence.num_heads, hidden),
        **{f"recurrence.{name}.weight": matrix(names[name], *shape) for name, shape in shapes.items()},
        "recurrence.a_log": reshape(Load(f"{prefix}A_log", logs), recurrence.num_heads),
        "recurrence.dt_bias": Load(f"{prefix}dt_bias", (size,)),
        "recurrence.norm.weight": Load(f"{prefix}o_norm.weight", (recurrence.value_dim,)),
        "recurrence.out.weight": matrix("o", hidden, size),
    }


EXPERTS = ExpertNames(
    router="block_sparse_moe.gate",
    correction="block_sparse_moe.gate.e_score_correction_bias",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
    shared="block_sparse_moe.shared_experts.{}_proj",
)
FAMILY = Family(
    ("KimiLinearForCausalLM",),
    spec,
    Layout(experts=EXPERTS.tensors, recurrence=recurrence).tensors,
    sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
)
