"""The text part of GLM-5-Next: Kimi delta attention, latent attention to chosen pools of tokens, and mixed streams.

Tensor names are those of the published files, which ``transformers`` writes too.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, reject_unless
from lmdeploy.turbomind.families.deepseek import indexer_of, indexer_tensors
from lmdeploy.turbomind.families.deepseek_v4 import stream_tensors
from lmdeploy.turbomind.families.gated_delta import recurrence_of
from lmdeploy.turbomind.families.kimi_linear import FAMILY as KIMI_LINEAR
from lmdeploy.turbomind.families.kimi_linear import GATES, delta_spec, delta_tensors
from lmdeploy.turbomind.families.latent import latent_attention, latent_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load, concat
from lmdeploy.turbomind.spec import HyperConnectionsSpec, MlpSpec, ModelSpec

_LIMIT = 10.0  # of clamped_silu_10


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec of a config."""
    reject_unless(config.swiglu_limit == _LIMIT, f"swiglu_limit {config.swiglu_limit}")
    reject_unless(config.index_kpool_always_select_tail, "index_kpool_always_select_tail false")
    config.rope_parameters = {}
    attention = latent_attention(config)
    assert attention.mla is not None
    indexer = dataclasses.replace(indexer_of(config), pool=config.index_kpool)
    mla = dataclasses.replace(attention.mla, norm_eps=config.rms_norm_eps, indexer=indexer)
    whole = delta_spec(
        config,
        checkpoint,
        {"gate_rank": config.linear_head_dim, "decay_bound": -(config.linear_lower_bound or 0.0)},
        attention=dataclasses.replace(attention, mla=mla),
        ropes=(),
        mlp=MlpSpec("clamped_silu_10"),
        hyper_connections=HyperConnectionsSpec(
            config.hc_mult, 0, 2.0, config.hc_eps, config.hc_sinkhorn_iters, ends_by_mean=True
        ),
    )
    assert whole.moe is not None
    clamped = ("clamped_silu_10",) * whole.num_layers
    return dataclasses.replace(
        whole, moe=dataclasses.replace(whole.moe, activations=clamped, shared_activations=clamped)
    )


def _config(raw: Mapping[str, Any]) -> Any:
    from transformers import Glm5NextTextConfig

    return Glm5NextTextConfig.from_dict({**raw, "model_type": Glm5NextTextConfig.model_type})


def _recurrence(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of Kimi delta attention."""
    return delta_tensors(spec, f"{prefix}self_attn.", GATES, (recurrence_of(spec).num_heads,))


def _latent(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the latent attention of a layer, and the indexer of pools if it has one."""
    found = latent_tensors(spec, prefix) | indexer_tensors(spec, prefix)
    if keys := found.get("attention.indexer.keys.weight"):
        assert spec.attention.mla is not None and spec.attention.mla.indexer is not None  # noqa: PT018
        indexer, stored = spec.attention.mla.indexer, f"{prefix}self_attn.indexer.index_kpool_compress_"
        gates = Load(f"{stored}gate", (indexer.head_dim, spec.hidden_size))
        found["attention.indexer.keys.weight"] = concat(keys, gates)
        found["attention.indexer.biases"] = Load(f"{stored}ape", (indexer.pool, indexer.head_dim))
    return found


def _tensors(spec: ModelSpec) -> dict[str, Expression]:
    return Layout(latent=_latent, recurrence=_recurrence).tensors(spec) | stream_tensors(spec, "model.layers.{}.")


FAMILY = Family(("Glm5NextTextModel",), spec, _tensors, config=_config, sizes=KIMI_LINEAR.sizes)
