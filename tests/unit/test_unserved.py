"""Models that see and are not served are refused by name, with the reason and what to use instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.checkpoint import describe
from lmdeploy.turbomind.unserved import UNSERVED, Unserved, refuse_unserved

_INTERNVL = {"ps_version": "v2", "dynamic_image_size": True, "use_thumbnail": True}
_LLAVA = {"mm_projector_type": "mlp2x_gelu", "mm_vision_tower": "openai/clip-vit-large-patch14-336"}
# What config.json of such a model has besides, where others share the architecture.
EXAMPLES: dict[str, dict[str, Any]] = {
    "Mono-InternVL": _INTERNVL | {"llm_config": {"architectures": ["InternLM2VEForCausalLM"]}},
    "InternVL 1.1, 1.2": _INTERNVL | {"dynamic_image_size": False},
    "MiniCPM-V but 2.6": {"version": 2.5},
    "Janus": {"gen_vision_config": {"cls": "VQ-16"}},
    "Yi-VL": _LLAVA | {"mm_projector_type": "mlp2x_gelu_Norm"},
    "InternVL built on LLaVA": _LLAVA | {"mm_vision_tower": "OpenGVLab/InternViT-6B-224px"},
    "LLaVA before 1.5": _LLAVA | {"mm_projector_type": "linear"},
    "LLaVA with tiles of another kind": _LLAVA | {"image_aspect_ratio": "anyres_max_9"},
}
# Served models of the same architectures.
SERVED: dict[str, dict[str, Any]] = {
    "InternVLChatModel": _INTERNVL | {"llm_config": {"architectures": ["Qwen2ForCausalLM"]}},
    "MiniCPMV": {"version": 2.6},
    "MultiModalityCausalLM": {"vision_config": {"cls": "CLIPVisionTower"}},
    "LlavaLlamaForCausalLM": _LLAVA | {"image_aspect_ratio": "pad"},
    "LlavaMistralForCausalLM": _LLAVA | {"image_aspect_ratio": "anyres", "mm_patch_merge_type": "spatial_unpad"},
}


@pytest.mark.parametrize("row", UNSERVED, ids=lambda row: row.models)
def test_each_is_refused_by_name_with_reason_and_advice(row: Unserved, tmp_path: Path) -> None:
    for name in row.architectures:
        config = {"architectures": [name], **EXAMPLES.get(row.models, {})}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModelError) as refused:
            describe(tmp_path, "model")
        assert str(refused.value).startswith(f"{row.models} ({name}) cannot be served: ")
        assert row.lacks in str(refused.value)
        assert row.instead in str(refused.value)


def test_a_name_in_auto_map_is_enough() -> None:
    code = {"AutoModel": "modeling_internlm_xcomposer2.InternLMXComposer2ForCausalLM"}
    with pytest.raises(UnsupportedModelError, match="XComposer2"):
        refuse_unserved({"architectures": ["InternLM2ForCausalLM"], "auto_map": code})


@pytest.mark.parametrize("architecture", SERVED)
def test_others_of_the_same_architecture_are_not_refused(architecture: str) -> None:
    shared = [row for row in UNSERVED if architecture in row.architectures]
    assert shared, "no row has this architecture"
    assert all(row.models in EXAMPLES for row in shared), "a row refuses all of them"
    refuse_unserved({"architectures": [architecture], **SERVED[architecture]})
