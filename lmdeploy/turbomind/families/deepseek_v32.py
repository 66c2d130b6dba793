"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with sparse attention.

Each token attends to the ``index_topk`` earlier ones that a small scorer, the indexer, chooses. In GLM-5 some layers
take the choice of the one before.
"""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.deepseek import corrected_router, latent_spec
from lmdeploy.turbomind.families.latent import latent_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.manifest import Expression, Load
from lmdeploy.turbomind.spec import IndexerSpec, ModelSpec

_NORM_EPS = 1e-6  # of the indexer's keys, whatever the config says of other norms


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    whole = latent_spec(config, checkpoint, corrected_router(config), is_interleaved=True)
    assert whole.attention.mla is not None
    kinds = getattr(config, "indexer_types", None) or ()
    indexer = IndexerSpec(
        top_k=config.index_topk,
        num_heads=config.index_n_heads,
        head_dim=config.index_head_dim,
        is_interleaved=whole.architecture == "GlmMoeDsaForCausalLM",
        norm_eps=_NORM_EPS,
        layers=tuple(kind == "full" for kind in kinds),
    )
    mla = dataclasses.replace(whole.attention.mla, indexer=indexer)
    return dataclasses.replace(whole, attention=dataclasses.replace(whole.attention, mla=mla))


def indexer_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return what the indexer of a layer whose tensors begin with ``prefix`` has; nothing where there is none."""
    mla = spec.attention.mla
    assert mla is not None
    indexer = mla.indexer
    assert indexer is not None
    layer = int(prefix.rstrip(".").rsplit(".", 1)[1])
    if indexer.layers and not indexer.layers[layer]:
        return {}
    shapes = {
        "queries.weight": ("wq_b.weight", (indexer.num_heads * indexer.head_dim, mla.q_rank)),
        "keys.weight": ("wk.weight", (indexer.head_dim, spec.hidden_size)),
        "key_norm.weight": ("k_norm.weight", (indexer.head_dim,)),
        "key_norm.bias": ("k_norm.bias", (indexer.head_dim,)),
        "heads.weight": ("weights_proj.weight", (indexer.num_heads, spec.hidden_size)),
    }
    own = f"{prefix}self_attn.indexer."
    return {f"attention.indexer.{name}": Load(own + source, shape) for name, (source, shape) in shapes.items()}


def _tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    return latent_tensors(spec, prefix) | indexer_tensors(spec, prefix)


FAMILY = Family(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), spec, Layout(latent=_tensors).tensors)
