"""HY4: DeepSeek-V3.2's attention with sinks and a gate, on hyper-connections.

As published, rotations are of neighbours, in place of the halves of ``transformers`` (so does vLLM), and the numbers of
an index head that rotate are its last.
"""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, reject_unless
from lmdeploy.turbomind.families.deepseek import deepseek_v32_spec, indexer_tensors
from lmdeploy.turbomind.families.latent import latent_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Constant, Expression, Load, concat, permute, reshape, rows_of
from lmdeploy.turbomind.spec import HyperConnectionsSpec, ModelSpec

_LIMIT = 10.0  # of clamped_silu_10


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(config.swiglu_limit in {0.0, _LIMIT}, f"swiglu_limit {config.swiglu_limit}")
    whole = deepseek_v32_spec(config, checkpoint)
    mla, moe = whole.attention.mla, whole.moe
    assert mla is not None and mla.indexer is not None and moe is not None  # noqa: PT018
    indexer = dataclasses.replace(mla.indexer, norm_eps=config.rms_norm_eps, is_interleaved=True)
    mla = dataclasses.replace(mla, indexer=indexer, has_gate=True)
    clamped = ("clamped_silu_10",) * whole.num_layers if config.swiglu_limit else ()
    return dataclasses.replace(
        whole,
        attention=dataclasses.replace(whole.attention, mla=mla, has_sinks=True),
        moe=dataclasses.replace(moe, activations=clamped),
        hyper_connections=HyperConnectionsSpec(config.hc_mult, 0, config.hc_magnitude, config.hc_eps),
    )


def _latent(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the latent attention and the indexer of a layer."""
    engine = latent_tensors(spec, prefix, gate="linear_gate")
    engine["attention.sinks"] = Load(f"{prefix}self_attn.learnable_sink_param", (spec.num_heads,))
    return engine | rotated_indexer(spec, prefix)


def rotated_indexer(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the indexer of a layer, if it has one."""
    found = indexer_tensors(spec, prefix)
    return {name: x if ".heads." in name else _rotated_first(spec, x) for name, x in found.items()}


def _rotated_first(spec: ModelSpec, stored: Expression) -> Expression:
    """Return rows of index heads, whose last ones rotate, in the engine's order."""
    mla = spec.attention.mla
    size, rotated = (mla.indexer.head_dim, mla.rope_dim) if mla and mla.indexer else (0, 0)
    rows, *inputs = stored.shape
    order = (1, 0, *range(2, len(inputs) + 2))
    heads = permute(reshape(stored, rows // size, size, *inputs), *order)
    turned = concat(rows_of(heads, size - rotated, size), rows_of(heads, 0, size - rotated))
    return reshape(permute(turned, *order), rows, *inputs)


def hyper_tensors(spec: ModelSpec) -> dict[str, Expression]:
    """Return the hyper-connections."""
    engine: dict[str, Expression] = {}
    count = spec.hyper_connections.count if spec.hyper_connections else 0
    width = count * spec.hidden_size
    sites = {"hyper.": ("model.hc_head.hc_head_", count, 1)}
    for i in range(spec.num_layers):
        for half, name in (("mixer", "attn"), ("mlp", "mlp")):
            sites[f"layers.{i}.hyper.{half}."] = (f"model.layers.{i}.hc_{name}_layer.hc_pre.hc_", 2 * count, 2)
    for prefix, (stored, rows, scales) in sites.items():
        engine[f"{prefix}norm.weight"] = Constant((width,), 1.0)
        engine[f"{prefix}weights.weight"] = Load(f"{stored}fn", (rows, width))
        engine[f"{prefix}weights.bias"] = Load(f"{stored}base", (rows,))
        engine[f"{prefix}scales"] = Load(f"{stored}scale", (scales,))
    return engine


FAMILY = Family(("HYV4ForCausalLM",), spec, lambda spec: Layout(latent=_latent).tensors(spec) | hyper_tensors(spec))
