"""Granite: dense, with experts, with windows, and hybrids with Mamba-2; Bamba, and HyperCLOVA X, a Granite."""

import copy
import dataclasses
from typing import Any

from lmdeploy.turbomind.families import llama
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.experts import ExpertNames, moe_of, stacked_experts
from lmdeploy.turbomind.families.falcon import FALCON_H1_LAYOUT
from lmdeploy.turbomind.families.gated_delta import MIXERS
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mamba import mamba_spec, mamba_tensors
from lmdeploy.turbomind.families.mistral import moe_spec
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import BlockSpec, ModelSpec, OutputSpec, RouterSpec


# Granite: Llama, with factors at the embeddings, the residual stream, the scores and the logits.
def granite_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    base = llama.llama_spec(config, checkpoint, **fields)
    return dataclasses.replace(
        base,
        attention=dataclasses.replace(base.attention, scale=config.attention_multiplier),
        block=BlockSpec(residual_scale=config.residual_multiplier),
        output=OutputSpec(scale=1 / config.logits_scaling),
        embedding_scale=config.embedding_multiplier,
    )


GRANITE = Family(("GraniteForCausalLM",), granite_spec, Layout().tensors)


# Granite 3 MoE: Granite, with experts in one tensor a layer; of some, a dense MLP that every token goes to.
def granite_moe_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    config.mlp_bias = False
    moe = moe_spec(config, RouterSpec(normalizes=True))
    shared = getattr(config, "shared_intermediate_size", 0)
    moe = dataclasses.replace(moe, shared_intermediate_size=shared)
    return granite_spec(config, checkpoint, moe=moe, **fields)


def granite_moe_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer."""
    stack, size = prefix + "block_sparse_moe.", (moe_of(spec).num_experts, spec.hidden_size)
    engine = stacked_experts(spec, f"{stack}input_linear.weight", f"{stack}output_linear.weight")
    engine["moe.router.weight"] = Load(f"{stack}router.layer.weight", size)
    return engine | shared_tensors(spec, prefix)


def shared_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer's shared expert, if there is one."""
    shared, hidden = moe_of(spec).shared_intermediate_size, spec.hidden_size
    if not shared:
        return {}
    return {
        "moe.shared.gate_up.weight": Load(f"{prefix}shared_mlp.input_linear.weight", (2 * shared, hidden)),
        "moe.shared.down.weight": Load(f"{prefix}shared_mlp.output_linear.weight", (hidden, shared)),
    }


GRANITE_MOE = Family(
    ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
    granite_moe_spec,
    Layout(experts=granite_moe_experts).tensors,
)


# Granite with windows: sinks, and a rotation of its own in each layer, or none; dense or with experts.
def granite_swa_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    bases = sorted({base for base in config.layer_rope_theta if base})
    turned = [copy.copy(config) for _ in bases]
    for rope, base in zip(turned, bases, strict=True):
        rope.rope_parameters = {**config.rope_parameters, "rope_theta": base}
    whole = (granite_moe_spec if checkpoint.architecture == "GraniteMoeSWAForCausalLM" else granite_spec)(
        config,
        checkpoint,
        ropes=tuple(rope_of(rope) for rope in turned),
        layer_ropes=tuple(bases.index(base) if base else -1 for base in config.layer_rope_theta),
    )
    return dataclasses.replace(whole, attention=dataclasses.replace(whole.attention, has_sinks=True))


_EXPERTS = ExpertNames(
    router="block_sparse_moe.router",
    gate="block_sparse_moe.experts.{}.gate_proj",
    up="block_sparse_moe.experts.{}.up_proj",
    down="block_sparse_moe.experts.{}.down_proj",
)


def granite_swa_experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer."""
    moe = dataclasses.replace(moe_of(spec), shared_intermediate_size=0)
    return _EXPERTS.tensors(dataclasses.replace(spec, moe=moe), prefix) | shared_tensors(spec, prefix)


GRANITE_SWA = Family(
    ("GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
    granite_swa_spec,
    Layout(experts=granite_swa_experts).tensors,
)


# HyperCLOVA X SEED Think: Granite, whose logits are multiplied by their factor, with norms of outputs in most.
def hyperclovax_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    base = granite_spec(config, checkpoint)
    return dataclasses.replace(
        base,
        block=dataclasses.replace(base.block, has_output_norms=config.use_post_norm),
        output=OutputSpec(scale=config.logits_scaling),
    )


HYPERCLOVAX_LAYOUT = Layout(attention_output_norm="post_norm1", mlp_output_norm="post_norm2")
HYPERCLOVAX = Family(("HyperCLOVAXForCausalLM",), hyperclovax_spec, HYPERCLOVAX_LAYOUT.tensors)


# Bamba: Mamba-2 in most layers, attention that rotates half of a head in the others.
def bamba_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    mixers = tuple(MIXERS[kind] for kind in config.layers_block_type)
    return llama.llama_spec(
        config,
        checkpoint,
        layer_mixers=mixers,
        recurrence=mamba_spec(config) if "recurrence" in mixers else None,
    )


BAMBA = Family(("BambaForCausalLM",), bamba_spec, FALCON_H1_LAYOUT.tensors)


# Granite 4: Granite, with Mamba-2 in most layers; a dense MLP alongside experts, or alone.
def granite_moe_hybrid_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    config.mlp_bias = False
    moe = None
    if config.num_local_experts:
        moe = moe_spec(config, RouterSpec(normalizes=True))
        moe = dataclasses.replace(moe, shared_intermediate_size=config.shared_intermediate_size)
    else:
        config.intermediate_size = config.shared_intermediate_size
    mixers = tuple(MIXERS.get(kind, kind) for kind in config.layer_types)
    return granite_spec(
        config,
        checkpoint,
        moe=moe,
        layer_mixers=mixers,
        recurrence=mamba_spec(config) if "recurrence" in mixers else None,
        ropes=(rope_of(config),) if config.position_embedding_type == "rope" else (),
    )


GRANITE_MOE_HYBRID_LAYOUT = Layout(
    gate_up="shared_mlp.input_linear",
    down="shared_mlp.output_linear",
    experts=granite_moe_experts,
    recurrence=lambda spec, prefix: mamba_tensors(spec, prefix + "mamba."),
)
GRANITE_MOE_HYBRID = Family(
    ("GraniteMoeHybridForCausalLM",), granite_moe_hybrid_spec, GRANITE_MOE_HYBRID_LAYOUT.tensors
)
