"""Vision-language models give the same results in both engines; tests/engine compares TurboMind with references."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.turbomind.engine_dir import resolve
from tests.support import tiny_own_layouts as own
from tests.support import tiny_vision_models as tiny
from tests.support.both_engines import config_for
from tests.support.cogvlm_reference import make_tiny_cogvlm
from tests.support.glm_4v_reference import make_tiny_glm_4v
from tests.support.images import make_image
from tests.support.minicpmv_reference import make_tiny_minicpmv
from tests.support.mllama_reference import make_tiny_mllama
from tests.support.molmo_reference import make_tiny_molmo
from tests.support.mono_internvl_reference import make_tiny_mono_internvl
from tests.support.phi3_vision_reference import make_tiny_phi3_vision
from tests.support.qwen_vl_reference import make_tiny_qwen_vl_chat
from tests.support.token_engine import relative_error
from tests.support.xcomposer_reference import make_tiny_xcomposer

TOLERANCE = 1e-4
SETTINGS = {
    "session_len": 512,
    "cache_max_entry_count": 128,
    "cache_block_seq_len": 16,
    "max_batch_size": 4,
    "num_tokens_per_iter": 20,  # so that images are divided
    "enable_prefix_caching": True,
}
MODELS: dict[str, Callable[[Path], Path]] = {
    "LLaVA 1.5": tiny.make_tiny_llava,
    "LLaVA 1.6 as its authors publish it": functools.partial(own.make_tiny_llava_original, tiles=True),
    "InternVL": tiny.make_tiny_internvl,
    "Phi-3-vision": make_tiny_phi3_vision,
    "MiniCPM-V 2.6": make_tiny_minicpmv,
    "DeepSeek-VL as its authors publish it": own.make_tiny_deepseek_vl_original,
    "Mistral 3": tiny.make_tiny_mistral3,
    "Qwen2-VL": tiny.make_tiny_qwen_vl,
    "Qwen2.5-VL": functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen2_5_VL"),
    "Qwen3-VL": functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen3VL"),
    "Qwen3-VL with experts": functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen3VLMoe"),
    "GLM-4.1V": tiny.make_tiny_glm4v,
}
BY_TURBOMIND: dict[str, Callable[[Path], Path]] = {
    "InternVL with InternLM2": functools.partial(own.make_tiny_internvl_chat, text="internlm2", normed=True),
    "GLM-4V": make_tiny_glm_4v,
    "Molmo": make_tiny_molmo,
    "Molmo 7B-O": functools.partial(make_tiny_molmo, kind="7B-O"),
    "MolmoE": functools.partial(make_tiny_molmo, kind="MolmoE"),
    "CogVLM": functools.partial(make_tiny_cogvlm, second=False),
    "CogVLM2": make_tiny_cogvlm,
    "Mono-InternVL": make_tiny_mono_internvl,
    "XComposer2": make_tiny_xcomposer,
    "XComposer2 4KHD": functools.partial(make_tiny_xcomposer, tiles=True),
    "Qwen-VL": make_tiny_qwen_vl_chat,
    "Llama 3.2 Vision": make_tiny_mllama,
    "Gemma 3": tiny.make_tiny_gemma3,
}
ALL = GenerationConfig(max_new_tokens=8, output_logits="all", do_sample=False, ignore_eos=True)


@pytest.mark.alike(max_cases=7)
@pytest.mark.parametrize("name", MODELS)
def test_responses_about_images_are_those_of_turbomind(name: str, tmp_path: Path) -> None:
    directory = MODELS[name](tmp_path / "model")
    prompts: list[Any] = [
        ("what is in this image?", make_image(40, 60)),
        "only a text",
        ("which is larger?", [make_image(90, 31, 1), make_image(40, 60)]),
    ]
    with pipeline(str(directory), config_for("turbomind", **SETTINGS)) as pipe:
        expected = pipe(prompts, ALL)
        other = pipe((prompts[0][0], make_image(40, 60, 2)), ALL)
        assert relative_error(other.logits, expected[0].logits) > TOLERANCE, "the image makes no difference"
    with pipeline(str(directory), config_for("pytorch", **SETTINGS)) as pipe:
        alone = [pipe(prompt, ALL) for prompt in prompts]
        together = pipe(prompts, ALL)  # after cached prefixes
    for one, other, reference in zip(alone, together, expected, strict=True):
        assert one.token_ids == other.token_ids == reference.token_ids
        assert relative_error(one.logits, reference.logits) < TOLERANCE
        assert relative_error(other.logits[-8:], one.logits[-8:]) == 0


@pytest.mark.parametrize("name", BY_TURBOMIND)
def test_turbomind_runs_what_only_it_can(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = resolve(BY_TURBOMIND[name](tmp_path / "model"), backend="pytorch")
    assert (engine.backend, engine.vision_checkpoint) == ("turbomind", tmp_path / "model")
    assert "the TurboMind engine runs it" in caplog.text


# The most that a cache of fewer bits may cost a tiny random model; unrelated logits would be 1.4 apart.
LOSSES = {8: 0.1, 4: 0.7}
IN_THE_MANUAL = ["CogVLM2", "Mono-InternVL", "InternVL", "GLM-4V", "Phi-3-vision", "Qwen2-VL"]


@pytest.mark.alike(max_cases=3)
@pytest.mark.parametrize("bits", LOSSES)
@pytest.mark.parametrize("name", IN_THE_MANUAL)
def test_a_cache_of_fewer_bits_loses_little(name: str, bits: int, tmp_path: Path) -> None:
    directory = (MODELS | BY_TURBOMIND)[name](tmp_path / "model")
    prompt = ("what is in this image?", make_image(40, 60))
    logits = []
    for policy in (0, bits):
        with pipeline(str(directory), config_for("pytorch", quant_policy=policy, **SETTINGS)) as pipe:
            response = pipe(prompt, ALL)
        logits.append(response.logits[: response.input_token_len])
    assert 0 < float((logits[1] - logits[0]).norm() / logits[0].norm()) < LOSSES[bits]
