"""Unsupported vision-language models are refused by name, with the reason and an alternative."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.checkpoint import describe
from lmdeploy.turbomind.families import family_of
from lmdeploy.turbomind.text_part import ARCHITECTURES, sees
from lmdeploy.turbomind.unsupported import ENCODERS, UNSUPPORTED, UnsupportedModel, reject_unsupported
from lmdeploy.vl.families import vision_families

_INTERNVL = {"ps_version": "v2", "dynamic_image_size": True, "use_thumbnail": True}
_LLAVA = {"mm_projector_type": "mlp2x_gelu", "mm_vision_tower": "openai/clip-vit-large-patch14-336"}
# Further fields of such a model's config.json, where others share the architecture.
EXAMPLES: dict[str, dict[str, Any]] = {
    "ChatGLM-6B": {"position_encoding_2d": True, "inner_hidden_size": 16384},
    "InternVL with tiles alone": _INTERNVL | {"use_thumbnail": False},
    "Janus": {"gen_vision_config": {"cls": "VQ-16"}},
    "InternVL built on LLaVA": _LLAVA | {"mm_vision_tower": "OpenGVLab/InternViT-6B-224px"},
    "LLaVA before 1.5": _LLAVA | {"mm_projector_type": "linear"},
    "LLaVA with tiles of another kind": _LLAVA | {"image_aspect_ratio": "anyres_max_9"},
}
# Served models of the same architectures.
SERVED: dict[str, dict[str, Any]] = {
    "ChatGLMForConditionalGeneration": {"padded_vocab_size": 65024, "rmsnorm": True},
    "ChatGLMModel": {"padded_vocab_size": 65024, "rmsnorm": True},
    "InternVLChatModel": _INTERNVL | {"llm_config": {"architectures": ["Qwen2ForCausalLM"]}},
    "MultiModalityCausalLM": {"vision_config": {"cls": "CLIPVisionTower"}},
    "LlavaLlamaForCausalLM": _LLAVA | {"image_aspect_ratio": "pad"},
    "LlavaMistralForCausalLM": _LLAVA | {"image_aspect_ratio": "anyres", "mm_patch_merge_type": "spatial_unpad"},
}


@pytest.mark.parametrize("row", UNSUPPORTED, ids=lambda row: row.models)
def test_each_is_refused_by_name_with_reason_and_advice(row: UnsupportedModel, tmp_path: Path) -> None:
    for name in row.architectures:
        config = {"architectures": [name], **EXAMPLES.get(row.models, {})}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModelError) as rejected:
            describe(tmp_path, "model")
        assert str(rejected.value).startswith(f"{row.models} ({name}) cannot be served: ")
        assert row.lacks in str(rejected.value)
        assert row.instead in str(rejected.value)


def test_a_name_in_auto_map_is_enough() -> None:
    code = {"AutoModel": "modeling_molmo2.Molmo2ForConditionalGeneration"}
    with pytest.raises(UnsupportedModelError, match="Molmo2"):
        reject_unsupported({"architectures": ["InternLM2ForCausalLM"], "auto_map": code})


@pytest.mark.parametrize("architecture", SERVED)
def test_others_of_the_same_architecture_are_not_refused(architecture: str) -> None:
    shared = [row for row in UNSUPPORTED if architecture in row.architectures]
    assert shared, "no row has this architecture"
    assert all(row.models in EXAMPLES for row in shared), "a row refuses all of them"
    reject_unsupported({"architectures": [architecture], **SERVED[architecture]})


REJECTED = (
    "HunYuanVLForConditionalGeneration", "PaliGemmaForConditionalGeneration", "Phi4MultimodalForCausalLM",
    "Molmo2ForConditionalGeneration", "MiniGeminiLlamaForCausalLM", "MGMLlamaForCausalLM",
)  # fmt: skip
# Of these names there are models of texts alone, or served as such: images in their prompts are refused.
READ = ("ChatGLMModel", "ChatGLMForConditionalGeneration", "QWenLMHeadModel", "OLMoForCausalLM")


def test_every_model_that_sees_is_served_or_refused_by_name() -> None:
    served = {architecture for architecture, _ in vision_families()}
    assert served == set(ARCHITECTURES)
    assert {name for row in UNSUPPORTED for name in row.architectures} - served == {
        *(*REJECTED, "LlavaQwenForCausalLM", "LongcatFlashForCausalLM", "LongcatCausalLM"),
        *("LlamaForCausalLMEagle3", "DFlashDraftModel"),
        "MistralLarge4ForConditionalGeneration",
        *("InklingForCausalLM", "InklingForConditionalGeneration"),
        *("Inkling2ForCausalLM", "Inkling2ForConditionalGeneration"),
        *("KimiK3ForConditionalGeneration", "Phi3SmallForCausalLM"),
        *ENCODERS,
    }
    for name in READ:
        assert family_of([name])[0] == name
        assert not sees({"architectures": [name]})
