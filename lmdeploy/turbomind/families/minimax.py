"""MiniMax-Text-01, M1, M2 and M3."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families import mistral
from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    attention_spec,
    decoder_spec,
    head_dim_of,
    reject_unless,
)
from lmdeploy.turbomind.families.gated_delta import MIXERS, recurrence_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mistral import MIXTRAL_EXPERTS, moe_spec
from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of
from lmdeploy.turbomind.spec import (
    BlockIndexerSpec,
    BlockSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    RecurrenceSpec,
    RouterSpec,
)

# MiniMax-Text-01 and M1: lightning attention, plain attention in some layers, experts, a normed residual stream.
_NORM_EPS = 1e-6  # of what lightning attention gives, whatever the config says of the others


def minimax_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    halves = ("full_attn", "linear_attn", "mlp")
    alphas, betas = ({getattr(config, f"{half}_{kind}_factor") for half in halves} for kind in ("alpha", "beta"))
    reject_unless(len(alphas) == len(betas) == 1, "factors that differ from one half of a layer to another")
    heads, layers, last = config.num_attention_heads, config.num_hidden_layers, config.num_hidden_layers - 1 + 1e-5
    size = head_dim_of(config)
    lightning = RecurrenceSpec(
        "lightning",
        num_heads=heads,
        num_key_heads=heads,
        key_dim=size,
        value_dim=size,
        conv_kernel=1,
        norm="groups",
        norm_eps=_NORM_EPS,
        gate="sigmoid",
        slopes=tuple(2 ** (-8 * (head + 1) / heads) for head in range(heads)),
        slope_factors=tuple(1 - layer / last + 1e-5 for layer in range(layers)),
    )
    return decoder_spec(
        config,
        checkpoint,
        block=BlockSpec(norms_stream=True, stream_scale=float(alphas.pop()), residual_scale=float(betas.pop())),
        moe=moe_spec(config, RouterSpec(normalizes=True)),
        layer_mixers=tuple(MIXERS.get(kind, kind) for kind in config.layer_types),
        recurrence=lightning if "linear_attention" in config.layer_types else None,
    )


def recurrence(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of lightning attention, whose rows are, for each head, queries, keys and values."""
    recurrence, hidden = recurrence_of(spec), spec.hidden_size
    size = recurrence.num_heads * recurrence.value_dim
    prefix += "self_attn."
    whole = Load(f"{prefix}qkv_proj.weight", (3 * size, hidden))
    heads = reshape(whole, recurrence.num_heads, 3, recurrence.value_dim, hidden)
    parts = [reshape(rows_of(heads, part, part + 1, dim=1), size, hidden) for part in range(3)]
    return {
        "recurrence.in.weight": concat(*parts, Load(f"{prefix}output_gate.weight", (size, hidden))),
        "recurrence.norm.weight": Load(f"{prefix}norm.weight", (size,)),
        "recurrence.out.weight": Load(f"{prefix}out_proj.weight", (hidden, size)),
    }


MINIMAX = Family(
    ("MiniMaxForCausalLM",), minimax_spec, Layout(experts=MIXTRAL_EXPERTS.tensors, recurrence=recurrence).tensors
)


# MiniMax-M2: norms over all queries and over all keys of a token, half a head rotated, experts chosen by sigmoid.
MINIMAX_M2_EXPERTS = dataclasses.replace(mistral.MIXTRAL_EXPERTS, correction="block_sparse_moe.e_score_correction_bias")


def minimax_m2_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qk_norm="projection"),
        moe=mistral.moe_spec(config, RouterSpec("sigmoid", normalizes=True, has_correction=True)),
    )


MINIMAX_M2 = Family(("MiniMaxM2ForCausalLM",), minimax_m2_spec, Layout(experts=MINIMAX_M2_EXPERTS.tensors).tensors)


# MiniMax-M3: M2 with norms of each head, and attention to blocks of tokens that index heads choose in most layers.
M3_EXPERTS = dataclasses.replace(MINIMAX_M2_EXPERTS, shared="block_sparse_moe.shared_experts.{}_proj")


def minimax_m3_config(raw: Mapping[str, Any]) -> Any:
    """Return the config, which ``transformers`` has as that of the text part of the model that sees."""
    from transformers import MiniMaxM3VLTextConfig

    return MiniMaxM3VLTextConfig.from_dict({**raw, "model_type": MiniMaxM3VLTextConfig.model_type})


def minimax_m3_spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    limits = (config.swiglu_alpha, config.swiglu_limit)
    reject_unless(limits == (1.702, 7.0), f"swiglu_alpha and swiglu_limit {limits}")
    reject_unless(config.index_local_blocks == 1, f"sparse_local_block {config.index_local_blocks}")
    layers = tuple(kind == "minimax_m3_sparse" for kind in config.layer_types)
    block = config.index_block_size
    indexer = BlockIndexerSpec(
        config.index_topk_blocks * block, block, config.index_n_heads, config.index_head_dim, True, layers
    )
    router = RouterSpec("sigmoid", normalizes=True, scale=config.routed_scaling_factor, has_correction=True)
    moe = dataclasses.replace(
        moe_spec(config, router),
        layers=tuple(kind == "sparse" for kind in config.mlp_layer_types),
        shared_intermediate_size=config.shared_intermediate_size,
    )
    return decoder_spec(
        config,
        checkpoint,
        intermediate_size=config.dense_intermediate_size,
        norm=NormSpec(config.rms_norm_eps, offset=1.0),
        mlp=MlpSpec("clamped_swiglu"),
        attention=attention_spec(config, qk_norm="head", block_indexer=indexer if any(layers) else None),
        moe=moe,
    )


def block_indexer_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the index heads of the layers that have some; ``prefix``: of their names, with ``{}`` for the layer."""
    indexer = spec.attention.block_indexer
    assert indexer is not None
    engine: dict[str, Expression] = {}
    size, hidden = indexer.head_dim, spec.hidden_size
    parts = {"queries": ("q_proj", (indexer.num_heads * size, hidden)), "keys": ("k_proj", (size, hidden))}
    norms = {"query_norm": ("q_norm", (size,)), "key_norm": ("k_norm", (size,))}
    layers = indexer.layers or map(spec.has_attention, range(spec.num_layers))
    for i in itertools.compress(range(spec.num_layers), layers):
        for name, (stored, shape) in (parts | norms).items():
            loaded = Load(f"{prefix.format(i)}{stored}.weight", shape)
            engine[f"layers.{i}.attention.block_indexer.{name}.weight"] = loaded
    return engine


def minimax_m3_tensors(spec: ModelSpec) -> dict[str, Expression]:
    engine = Layout(experts=M3_EXPERTS.tensors).tensors(spec)
    indexers = block_indexer_tensors(spec, "model.layers.{}.self_attn.index_") if spec.attention.block_indexer else {}
    return engine | indexers


MINIMAX_M3 = Family(("MiniMaxM3ForCausalLM",), minimax_m3_spec, minimax_m3_tensors, config=minimax_m3_config)
