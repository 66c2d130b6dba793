"""DeepSeek-V4: attention to compressed keys on mixed residual streams, and experts of which some go by token.

Tensor names are those of the published files, which ``transformers`` writes too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lmdeploy.turbomind.families.common import SIZES, Checkpoint, Family, decoder_spec, reject_unless
from lmdeploy.turbomind.families.experts import ExpertNames, moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.manifest import Constant, Expression, Load, concat
from lmdeploy.turbomind.spec import (
    AttentionSpec,
    CompressedAttentionSpec,
    HyperConnectionsSpec,
    ModelSpec,
    MoeSpec,
    RouterSpec,
)

_LIMIT = 10.0  # of clamped_silu_10
_LAYERS = {
    "sliding_attention": "none",
    "compressed_sparse_attention": "sparse",
    "heavily_compressed_attention": "heavy",
}
_SCORES = {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid", "softmax": "softmax"}


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of a config."""
    reject_unless(config.swiglu_limit == _LIMIT, f"swiglu_limit {config.swiglu_limit}")
    reject_unless(config.scoring_func in _SCORES, f"scoring_func {config.scoring_func!r}")
    reject_unless(not config.attention_bias and not config.mlp_bias, "attention_bias or mlp_bias")
    layers = config.num_hidden_layers
    activations = ("clamped_silu_10",) * layers
    moe = MoeSpec(
        num_experts=config.n_routed_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        router=RouterSpec(
            score=_SCORES[config.scoring_func],
            normalizes=True,
            scale=config.routed_scaling_factor,
            has_correction=True,
        ),
        by_token=tuple(kind == "hash_moe" for kind in config.mlp_layer_types),
        shared_intermediate_size=config.moe_intermediate_size,
        activations=activations,
        shared_activations=activations,
    )
    compressed = CompressedAttentionSpec(
        layers=tuple(_LAYERS[kind] for kind in config.layer_types),
        window=config.sliding_window,
        sparse_ratio=config.compress_rates["compressed_sparse_attention"],
        heavy_ratio=config.compress_rates["heavily_compressed_attention"],
        q_rank=config.q_lora_rank,
        output_groups=config.o_groups,
        output_rank=config.o_lora_rank,
        top_k=config.index_topk,
        index_heads=config.index_n_heads,
        index_head_dim=config.index_head_dim,
    )
    return decoder_spec(
        config,
        checkpoint,
        attention=AttentionSpec(scale=config.head_dim**-0.5),
        intermediate_size=config.moe_intermediate_size,
        layer_mixers=("compressed",) * layers,
        compressed_attention=compressed,
        ropes=tuple(rope_of(config, kind, is_interleaved=True) for kind in ("main", "compress")),
        layer_ropes=tuple(int(kind != "sliding_attention") for kind in config.layer_types),
        moe=moe,
        hyper_connections=HyperConnectionsSpec(config.hc_mult, 0, 2.0, config.hc_eps, config.hc_sinkhorn_iters),
    )


def _config(raw: Mapping[str, Any]) -> Any:
    """Return the config; some published ones have a type of their own."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING["deepseek_v4"].from_dict({**raw, "model_type": "deepseek_v4"})


def _attention(spec: ModelSpec, prefix: str, layer: int) -> dict[str, Expression]:
    """Return the attention of a layer whose tensors begin with ``prefix``."""
    compressed = spec.compressed_attention
    assert compressed is not None
    kind, dim, hidden, rank = compressed.layers[layer], spec.head_dim, spec.hidden_size, compressed.q_rank
    outputs, heads = compressed.output_groups * compressed.output_rank, spec.num_heads * dim
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "q_down.weight": ("wq_a.weight", (rank, hidden)),
        "q_down_norm.weight": ("q_norm.weight", (rank,)),
        "q_up.weight": ("wq_b.weight", (heads, rank)),
        "key.weight": ("wkv.weight", (dim, hidden)),
        "key_norm.weight": ("kv_norm.weight", (dim,)),
        "sinks": ("attn_sink", (spec.num_heads,)),
        "output_down.weight": ("wo_a.weight", (outputs, heads // compressed.output_groups)),
        "output.weight": ("wo_b.weight", (hidden, outputs)),
    }
    if kind == "sparse":
        queries = compressed.index_heads * compressed.index_head_dim
        shapes |= {
            "indexer.queries.weight": ("indexer.wq_b.weight", (queries, rank)),
            "indexer.heads.weight": ("indexer.weights_proj.weight", (compressed.index_heads, hidden)),
        }
    engine: dict[str, Expression] = {
        f"compressed.{name}": Load(prefix + source, shape) for name, (source, shape) in shapes.items()
    }
    if kind == "sparse":
        engine |= _compressor(spec, "indexer.", f"{prefix}indexer.compressor.", compressed.index_head_dim, 2)
    if kind != "none":
        engine |= _compressor(spec, "compressor.", f"{prefix}compressor.", dim, 2 if kind == "sparse" else 1)
    return engine


def _compressor(spec: ModelSpec, name: str, prefix: str, dim: int, series: int) -> dict[str, Expression]:
    compressed = spec.compressed_attention
    assert compressed is not None
    ratio = compressed.sparse_ratio if series == 2 else compressed.heavy_ratio
    shape = (series * dim, spec.hidden_size)
    return {
        f"compressed.{name}rows.weight": concat(*(Load(f"{prefix}{part}.weight", shape) for part in ("wkv", "wgate"))),
        f"compressed.{name}biases": Load(f"{prefix}ape", (ratio, series * dim)),
        f"compressed.{name}norm.weight": Load(f"{prefix}norm.weight", (dim,)),
    }


_EXPERTS = ExpertNames(
    router="ffn.gate",
    correction="ffn.gate.bias",
    gate="ffn.experts.{}.w1",
    up="ffn.experts.{}.w3",
    down="ffn.experts.{}.w2",
    shared="ffn.shared_experts.{}",
    shared_parts=("w1", "w3", "w2"),
)
_LAYOUT = Layout(
    embedding="embed",
    final_norm="norm",
    lm_head="head",
    layer="layers.{}.",
    attention_norm="attn_norm",
    mlp_norm="ffn_norm",
)


def _experts(spec: ModelSpec, prefix: str, layer: int) -> dict[str, Expression]:
    """Return the experts of a layer, chosen by the router or by a table of the vocabulary's tokens."""
    engine = _EXPERTS.tensors(spec, prefix)
    moe = moe_of(spec)
    if moe.by_token[layer]:
        del engine["moe.router.correction"]
        table = Load(f"{prefix}ffn.gate.tid2eid", (spec.vocab_size, moe.experts_per_token), ("I64", "I32"))
        engine["moe.router.token_experts"] = table
    return engine


def _mixer(spec: ModelSpec, engine: str, prefix: str, outputs: int, scales: int) -> dict[str, Expression]:
    """Return the weights of streams of a half of a layer, or of the output."""
    width = spec.hidden_size * (spec.hyper_connections.count if spec.hyper_connections else 0)
    return {
        f"{engine}norm.weight": Constant((width,), 1.0),
        f"{engine}weights.weight": Load(f"{prefix}fn", (outputs, width)),
        f"{engine}weights.bias": Load(f"{prefix}base", (outputs,)),
        f"{engine}scales": Load(f"{prefix}scale", (scales,)),
    }


def _tensors(spec: ModelSpec) -> dict[str, Expression]:
    count = spec.hyper_connections.count if spec.hyper_connections else 0
    engine = replace(_LAYOUT, experts=lambda *_: {}).tensors(spec) | _mixer(spec, "hyper.", "hc_head_", count, 1)
    for layer in range(spec.num_layers):
        prefix = f"layers.{layer}."  # in the checkpoint and in the engine
        parts = _attention(spec, f"{prefix}attn.", layer) | _experts(spec, prefix, layer)
        engine |= {prefix + part: expression for part, expression in parts.items()}
    return engine | stream_tensors(spec, "layers.{}.")


def stream_tensors(spec: ModelSpec, layer: str) -> dict[str, Expression]:
    """Return the weights of mixed streams in all layers, whose tensors begin with ``layer``."""
    count = spec.hyper_connections.count if spec.hyper_connections else 0
    engine: dict[str, Expression] = {}
    for i in range(spec.num_layers):
        for half, source in (("mixer", "attn"), ("mlp", "ffn")):
            stored = f"{layer.format(i)}hc_{source}_"
            engine |= _mixer(spec, f"layers.{i}.hyper.{half}.", stored, (2 + count) * count, 3)
    return engine


FAMILY = Family(
    ("DeepseekV4ForCausalLM",),
    spec,
    _tensors,
    config=_config,
    sizes=tuple(name for name in SIZES if name != "intermediate_size"),
)
