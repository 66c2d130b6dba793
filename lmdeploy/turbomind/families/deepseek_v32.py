"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with sparse attention.

Each token attends to the ``index_topk`` earlier ones that a small scorer chooses. As long as there are no more, these
are all of them, and the model is DeepSeek-V3: so far it is served, and the scorer's weights are not read.
"""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.deepseek import corrected_router, latent_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec, of no longer sequences than attention is dense in."""
    whole = latent_spec(config, checkpoint, corrected_router(config), is_interleaved=True)
    assert whole.attention.mla is not None
    mla = dataclasses.replace(whole.attention.mla, dense_length=config.index_topk)
    return dataclasses.replace(
        whole,
        attention=dataclasses.replace(whole.attention, mla=mla),
        max_position_embeddings=min(config.index_topk, whole.max_position_embeddings),
    )


FAMILY = Family(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), spec, Layout().tensors)
