"""Vision-language models in their authors' own layouts, and the tool for XComposer2.5's tasks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.auto import image_processing_auto

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.model import MODELS
from lmdeploy.prompts import PromptPreparer
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.checkpoint import describe
from lmdeploy.turbomind.rewritten import readable_checkpoint
from lmdeploy.turbomind.unsupported import reject_unsupported
from lmdeploy.vl.prompts import image_writer
from lmdeploy.vl.sources import ANYTHING
from lmdeploy.vl.tools import merge_xcomposer2d5_task
from lmdeploy.vl.tower import counting_part, family_in, seeing_part
from tests.support.fake_hub import running_hub, use_hub
from tests.support.images import make_image
from tests.support.minicpmv_reference import make_tiny_minicpmv
from tests.support.molmo_reference import make_tiny_molmo
from tests.support.qwen_vl_reference import make_tiny_qwen_vl_chat
from tests.support.tiny_own_layouts import make_tiny_internvl_chat, make_tiny_llava_original, native_of
from tests.support.tiny_vision_models import make_tiny_llava, token_id
from tests.support.token_engine import relative_error
from tests.support.xcomposer_reference import make_tiny_xcomposer

CLIP_LARGE = "openai/clip-vit-large-patch14-336"


def change(directory: Path, **values: Any) -> Path:
    config = json.loads((directory / "config.json").read_text()) | values
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_tower_that_is_elsewhere_is_fetched_or_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    directory = make_tiny_llava_original(tmp_path / "model")
    found = family_in(directory)
    assert found is not None
    expected = found[1].features(seeing_part(directory), make_image(40, 60), {})
    change(directory, mm_vision_tower=CLIP_LARGE)
    with running_hub({}) as hub:
        use_hub(hub, monkeypatch)
        with pytest.raises(UnsupportedModelError, match=rf"another repository, {CLIP_LARGE}; name a folder .*llava-hf"):
            counting_part(directory)
        hub.files[CLIP_LARGE] = {file.name: file.read_bytes() for file in (tmp_path / "clip").iterdir()}
        rows = found[1].features(seeing_part(directory), make_image(40, 60), {})
    assert torch.equal(rows, expected)
    change(directory, mm_vision_tower="somebody/tower")
    with pytest.raises(UnsupportedModelError, match="another repository, somebody/tower; name a folder"):
        counting_part(directory)


def test_a_published_tower_in_the_checkpoint_needs_no_folder(tmp_path: Path) -> None:
    directory = change(make_tiny_llava_original(tmp_path / "model", tiles=True), mm_vision_tower=CLIP_LARGE)
    part = counting_part(directory)
    vision = part.config.vision_config
    sizes = (vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers, vision.num_attention_heads)
    assert sizes == (1024, 4096, 24, 16)
    assert (vision.image_size, vision.patch_size, vision.hidden_act) == (336, 14, "quick_gelu")
    assert part.processor.crop_size["height"] == 336


def test_a_tower_of_another_kind_is_refused(tmp_path: Path) -> None:
    directory = make_tiny_llava_original(tmp_path / "model")
    (tmp_path / "clip" / "config.json").write_text('{"model_type": "siglip_vision_model"}')
    with pytest.raises(UnsupportedModelError, match=r"the tower must be CLIP's, got siglip_vision_model"):
        counting_part(directory)


@pytest.mark.parametrize("make", [make_tiny_llava, make_tiny_llava_original, make_tiny_minicpmv])
def test_a_checkpoint_in_pickled_files_sees_the_same(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CACHE", str(tmp_path / "cache"))
    directory = make(tmp_path / "model")
    image = make_image(60, 40)

    def rows(checkpoint: Path) -> torch.Tensor:
        found = family_in(checkpoint)
        assert found is not None
        return found[1].features(seeing_part(checkpoint), image, {})

    expected = rows(directory)
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    readable = readable_checkpoint(directory)
    assert readable != directory
    assert torch.equal(rows(readable), expected)


def test_internvl_1_2_sees_one_tile_column_by_column(tmp_path: Path) -> None:
    directory = make_tiny_internvl_chat(tmp_path / "model", patch=7)
    native = transformers.InternVLForConditionalGeneration.from_pretrained(native_of(directory), dtype=torch.float64)
    change(directory, ps_version="v1", dynamic_image_size=False, use_thumbnail=False)
    reject_unsupported(json.loads((directory / "config.json").read_text()))
    image = make_image(90, 31)
    found = family_in(directory)
    assert found is not None
    part, family = seeing_part(directory), found[1]
    assert family.expansion(counting_part(directory), image.size, {}) == "<img>" + "<IMG_CONTEXT>" * 4 + "</img>"
    # As published: the image in one size, and four neighbours to a token without the last permutation.
    pixels = torch.tensor(np.array(image.convert("RGB").resize((28, 28), Image.Resampling.BICUBIC))) / 255
    pixels = (pixels - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    with torch.inference_mode():
        seen = native.model.vision_tower(pixels.permute(2, 0, 1)[None].double()).last_hidden_state[:, 1:]
        size = seen.shape[-1]
        halves = seen.view(1, 4, 2, 2 * size).permute(0, 2, 1, 3).reshape(1, 2, 2, 4 * size)
        expected = native.model.multi_modal_projector(halves.reshape(4, 4 * size))
        rows = family.features(part, image, {})
    assert relative_error(rows, expected) < 1e-4
    assert relative_error(rows.flip(0), expected) > 1e-2


@pytest.mark.parametrize("lacking", ["vision_config", "downsample_ratio", "max_dynamic_patch"])
def test_a_config_that_lacks_something_is_refused_by_its_name(lacking: str, tmp_path: Path) -> None:
    directory = make_tiny_internvl_chat(tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    del config[lacking]
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"config\.json lacks '{lacking}'"):
        counting_part(directory)


def test_images_have_numbers_where_the_model_wants_them(tmp_path: Path) -> None:
    directory = make_tiny_minicpmv(tmp_path / "model")
    tokenizer, chosen = Tokenizer(str(directory)), MODELS.get("minicpmv-2d6")()
    preparer = PromptPreparer(tokenizer, chosen, images=image_writer(directory, tokenizer, chosen, ANYTHING))
    ids = preparer.prepare(("which <image_id>?", [make_image(20, 20), make_image(20, 20, 1)])).ids
    view = "<image>" + "<unk>" * 4 + "</image>"
    expected = f"<image_id>0</image_id>{view}\n<image_id>1</image_id>{view}\nwhich <image_id>?<|im_end|>"
    assert expected in tokenizer.decode(ids, skip_special_tokens=False)
    assert ids.count(token_id(directory, "<image_id>")) == 2


def test_words_after_the_vocabulary_are_plain_text(tmp_path: Path) -> None:
    directory = make_tiny_molmo(tmp_path / "model")
    tokenizer, chosen = Tokenizer(str(directory)), MODELS.get("molmo")()
    preparer = PromptPreparer(tokenizer, chosen, images=image_writer(directory, tokenizer, chosen, ANYTHING))
    assert token_id(directory, "<im_patch>") >= describe(directory, "model").spec.vocab_size
    typed = preparer.prepare("<im_start><im_patch><im_col><im_end><|image|>|<EXTRA_TOKENS_0>|").ids
    assert max(typed) < 258, "a word became a special token"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("which?", "Image 1: [4]\nImage 2: [4]\nwhich?"),
        (
            "Image 1: <IMAGE_TOKEN>\nImage 2: <IMAGE_TOKEN>\nwhich?",
            "Image 1: [4]\nImage 2: [4]\nwhich?",
        ),
        ("<IMAGE_TOKEN> or <IMAGE_TOKEN>?", "Image 1: [4] or Image 2: [4]?"),
    ],
)
def test_qwen_vl_numbers_images_that_the_text_does_not(prompt: str, expected: str, tmp_path: Path) -> None:
    directory = make_tiny_qwen_vl_chat(tmp_path / "model")
    tokenizer, chosen = Tokenizer(str(directory)), MODELS.get("qwen")()
    preparer = PromptPreparer(tokenizer, chosen, images=image_writer(directory, tokenizer, chosen, ANYTHING))
    prepared = preparer.prepare((prompt, [make_image(20, 20), make_image(20, 20, 1)]))
    written = tokenizer.decode(prepared.ids, skip_special_tokens=False)
    assert expected.replace("[4]", "<img>" + "<imgpad>" * 4 + "</img>") in written


@pytest.mark.parametrize(
    ("make", "template", "token", "expected"),
    [
        (
            make_tiny_internvl_chat,
            "internvl2_5",
            "<IMG_CONTEXT>",
            "<|im_start|>user\n<img>[4]</img>\nwhat?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (make_tiny_llava_original, "llava-v1", "<unk>", "USER: [4]\nwhat? ASSISTANT:"),
    ],
)
def test_images_stand_in_front_of_the_text(
    make: Callable[[Path], Path], template: str, token: str, expected: str, tmp_path: Path
) -> None:
    directory = make(tmp_path / "model")
    tokenizer, chosen = Tokenizer(str(directory)), MODELS.get(template)()
    preparer = PromptPreparer(tokenizer, chosen, images=image_writer(directory, tokenizer, chosen, ANYTHING))
    prepared = preparer.prepare(("what?", make_image(60, 40)))
    ((begin, length),) = prepared.images[0].runs
    assert set(prepared.ids[begin : begin + length]) == {token_id(directory, token)}
    before, behind = prepared.ids[:begin], prepared.ids[begin + length :]
    written = [tokenizer.decode(ids, skip_special_tokens=False) for ids in (before, behind)]
    assert f"{written[0]}[{length}]{written[1]}".endswith(expected.replace("[4]", f"[{length}]"))
    assert length >= 4
    typed = preparer.prepare(f"{token} {token}")
    assert token_id(directory, token) not in typed.ids


def test_images_are_read_by_pillow_also_where_torchvision_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []

    def choose(*given: Any) -> str:
        chosen.append(resolve(*given))
        return "pil"  # which is here

    resolve = image_processing_auto._resolve_backend
    monkeypatch.setattr(image_processing_auto, "is_torchvision_available", lambda: True)
    monkeypatch.setattr(image_processing_auto, "_resolve_backend", choose)
    directory = make_tiny_llava(tmp_path / "model")
    counting_part(directory)
    transformers.AutoImageProcessor.from_pretrained(directory)
    assert chosen == ["pil", "torchvision"]


KINDS = {"web": ["web"], "write": ["sft", "dpo"]}


def with_tasks(directory: Path) -> dict[str, torch.Tensor]:
    make_tiny_xcomposer(directory, tiles=True)
    tensors = load_file(directory / "model.safetensors")
    random = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(("attention.wqkv.weight", "feed_forward.w2.weight"))]:
        outputs, inputs = tensors[name].shape
        at = name.removesuffix("weight")
        for kind in ("sft", "dpo", "web"):
            tensors[f"{at}lora_{kind}_A.weight"] = torch.randn(8, inputs, generator=random)
            tensors[f"{at}lora_{kind}_B.weight"] = torch.randn(outputs, 8, generator=random)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return tensors


@pytest.mark.parametrize("task", KINDS)
def test_a_task_is_added_to_the_weights(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = with_tasks(tmp_path / "model")
    arguments = [str(tmp_path / "model"), str(tmp_path / "merged"), "--task", task]
    assert merge_xcomposer2d5_task.main(arguments) == 0
    assert f"{4 * len(KINDS[task])} pairs of matrices of {task}" in capsys.readouterr().out
    after = load_file(tmp_path / "merged" / "model.safetensors")
    assert after.keys() == {name for name in before if ".lora_" not in name}
    changed = set()
    for name, tensor in after.items():
        at = name.removesuffix("weight")
        expected = before[name].double()
        for kind in KINDS[task]:
            if f"{at}lora_{kind}_A.weight" in before:
                down, up = (before[f"{at}lora_{kind}_{part}.weight"].double() for part in "AB")
                expected = expected + up @ down
                changed.add(name)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-5)
    assert len(changed) == 4
    describe(tmp_path / "merged", "merged")  # a whole checkpoint


def test_what_cannot_be_merged_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tiny_xcomposer(tmp_path / "plain")
    arguments = [str(tmp_path / "plain"), str(tmp_path / "merged"), "--task", "web"]
    assert merge_xcomposer2d5_task.main(arguments) == 1
    assert "has no low-rank matrices named lora_web_A" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()
    tensors = with_tasks(tmp_path / "model")
    del tensors["model.layers.0.attention.wqkv.lora_web_B.weight"]
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    arguments[0] = str(tmp_path / "model")
    assert merge_xcomposer2d5_task.main(arguments) == 1
    assert "tensor model.layers.0.attention.wqkv.lora_web_B.weight is missing" in capsys.readouterr().err
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "kept").touch()
    assert merge_xcomposer2d5_task.main([*arguments[:3], "write"]) == 1
    assert "is not empty" in capsys.readouterr().err
