"""MiniMax-M2: norms over all queries and over all keys of a token, half a head rotated, experts chosen by sigmoid."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import mixtral
from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec

EXPERTS = dataclasses.replace(mixtral.EXPERTS, correction="block_sparse_moe.e_score_correction_bias")


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qk_norm="projection"),
        moe=mixtral.moe_spec(config, RouterSpec("sigmoid", normalizes=True, has_correction=True)),
    )


FAMILY = Family(("MiniMaxM2ForCausalLM",), spec, Layout(experts=EXPERTS.tensors).tensors)
