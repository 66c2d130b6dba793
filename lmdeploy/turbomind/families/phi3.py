"""Phi-3, Phi-3.5, Phi-4: one matrix for q, k, v and one for gate and up; longrope; a sliding window in some."""

from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.families.common import Family, decoder_spec
from lmdeploy.turbomind.families.layout import Layout

LAYOUT = Layout(qkv="self_attn.qkv_proj", gate_up="mlp.gate_up_proj")


def config(raw: Mapping[str, Any]) -> Any:
    """Return the ``Phi3Config``; its first files call longrope by another name."""
    from transformers import Phi3Config

    fields = dict(raw) | {"model_type": "phi3"}
    scaling = raw.get("rope_scaling")
    if isinstance(scaling, Mapping) and scaling.get("type") == "su":
        fields["rope_scaling"] = {**scaling, "type": "longrope"}
    return Phi3Config.from_dict(fields)


FAMILY = Family(("Phi3ForCausalLM",), decoder_spec, LAYOUT.tensors, config=config)
