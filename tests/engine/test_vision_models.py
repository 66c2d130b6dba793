"""Vision-language models compute what `transformers` computes of the same image and text, on tiny random checkpoints.

`transformers` processes the image and looks at it itself; both sides sum in float32, in different orders.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from transformers import LlavaForConditionalGeneration, LlavaImageProcessorPil
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support import tiny_own_layouts
from tests.support import tiny_vision_models as tiny
from tests.support.both_engines import WITHOUT_REUSE
from tests.support.cogvlm_reference import CogVlmReference, make_tiny_cogvlm
from tests.support.glm_4v_reference import Glm4vReference, make_tiny_glm_4v
from tests.support.images import make_image
from tests.support.minicpmv_reference import MiniCpmReference, make_tiny_minicpmv
from tests.support.mllama_reference import MllamaReference, make_tiny_mllama
from tests.support.molmo_reference import MolmoReference, make_tiny_molmo
from tests.support.mono_internvl_reference import MonoInternVlReference, make_tiny_mono_internvl
from tests.support.phi3_vision_reference import Phi3VisionReference, make_tiny_phi3_vision
from tests.support.qwen_vl_reference import QwenVlReference, make_tiny_qwen_vl_chat
from tests.support.tiny_vision_models import IMAGE_SIDE as SIDE
from tests.support.tiny_vision_models import MAX_TILES
from tests.support.token_engine import relative_error
from tests.support.xcomposer_reference import XComposerReference, make_tiny_xcomposer


def make_tiny_yi_vl(directory: Path) -> Path:
    """Make a Yi-VL in its authors' layout, its tower in a folder alongside it."""
    return tiny_own_layouts.make_tiny_llava_original(directory, normed=True)


class YiVlReference:
    """Logits of a checkpoint made by :func:`make_tiny_yi_vl`."""

    def __init__(self, directory: Path) -> None:
        native = tiny_own_layouts.native_of(directory)
        self._model = LlavaForConditionalGeneration.from_pretrained(native, dtype=torch.float64)
        self._pixels = LlavaImageProcessorPil.from_pretrained(native)
        prefix = "model.mm_projector."
        tensors = load_file(directory / "model.safetensors")
        projector = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
        hidden, seen = projector["0.weight"].shape
        layers = (nn.Linear(seen, hidden), nn.LayerNorm(hidden), nn.GELU(), nn.Linear(hidden, hidden))
        whole = nn.Sequential(*layers, nn.LayerNorm(hidden))
        whole.load_state_dict(projector)
        self._model.model.multi_modal_projector = whole.double()

    def __call__(self, ids: list[int], images: list[Image.Image]) -> torch.Tensor:
        """Return the logits [tokens, vocab] of a text with images."""
        shown = {"pixel_values": self._pixels(images, return_tensors="pt")["pixel_values"].double()} if images else {}
        with torch.inference_mode():
            logits: torch.Tensor = self._model(input_ids=torch.tensor([ids]), **shown).logits[0]
        return logits


def best_canvas(width: int, height: int) -> tuple[int, int]:
    """Return rows and columns of the smallest canvas that holds the image, else of that which shrinks it least."""
    fits = {
        (rows, columns): min(Fraction(columns * SIDE, width), Fraction(rows * SIDE, height))
        for rows in range(1, MAX_TILES + 1)
        for columns in range(1, MAX_TILES // rows + 1)
    }
    holding = [scale for scale in fits.values() if scale >= 1]
    best = min(holding) if holding else max(fits.values())
    return min((rows * columns, rows, columns) for (rows, columns), scale in fits.items() if scale == best)[1:]


def _resized(pixels: torch.Tensor, width: int, height: int, mode: str = "bilinear") -> torch.Tensor:
    return torch.nn.functional.interpolate(pixels, (height, width), mode=mode, antialias=True)


def llama4_inputs(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    """Return the pixels of tiles and whole, between -1 and 1."""
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    rows, columns = best_canvas(*image.size)
    width, height = (
        min(max(side, SIDE), limit * SIDE) for side, limit in zip(image.size, (columns, rows), strict=True)
    )
    scale = min(Fraction(width, image.width), Fraction(height, image.height))
    small = _resized(pixels, int(image.width * scale), int(image.height * scale))
    canvas = torch.zeros(3, rows * SIDE, columns * SIDE, dtype=torch.uint8)
    canvas[:, : small.shape[2], : small.shape[3]] = small[0]
    tiles = canvas.reshape(3, rows, SIDE, columns, SIDE).permute(1, 3, 0, 2, 4).flatten(0, 1)
    if rows * columns > 1:
        tiles = torch.cat([tiles, _resized(pixels, SIDE, SIDE)])
    return {"pixel_values": tiles.float() / 127.5 - 1}


def command_a_vision_inputs(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    """Return the pixels of tiles and whole, normalized as CLIP's."""
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    rows, columns = best_canvas(*image.size)
    canvas = _resized(pixels, columns * SIDE, rows * SIDE, "bicubic")
    tiles = [
        canvas[..., y : y + SIDE, x : x + SIDE]
        for y in range(0, rows * SIDE, SIDE)
        for x in range(0, columns * SIDE, SIDE)
    ]
    if len(tiles) > 1:
        tiles.append(_resized(pixels, SIDE, SIDE, "bicubic"))
    mean, std = (torch.tensor(values)[:, None, None] for values in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    return {"pixel_values": (torch.cat(tiles).float() / 255 - mean) / std}


def kimi_inputs(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    """Return patches of 14 pixels between -1 and 1 of at most 48, 12 on a side, and their rows and columns."""
    patches = max(1, image.width // 14) * max(1, image.height // 14)
    scale = min(1, (48 / patches) ** 0.5, 168 / image.width, 168 / image.height)
    width, height = (min(168, max(1, int(side * scale))) for side in image.size)
    canvas = Image.new("RGB", (-(-width // 28) * 28, -(-height // 28) * 28))
    canvas.paste(image.resize((width, height), Image.Resampling.BICUBIC))
    pixels = torch.from_numpy(np.asarray(canvas).copy()).permute(2, 0, 1) / 127.5 - 1
    cut = [pixels[:, y : y + 14, x : x + 14] for y in range(0, canvas.height, 14) for x in range(0, canvas.width, 14)]
    return {"pixel_values": torch.stack(cut), "image_grid_thw": [[1, canvas.height // 14, canvas.width // 14]]}


def lfm2_vl_inputs(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    """Return patches between -1 and 1 of tiles of 16 pixels and of the whole, which has 4 to 12 squares of 8."""
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    area, shape = image.width * image.height, image.width / image.height
    squares = max(1, round(image.width / 8)) * max(1, round(image.height / 8))
    views = []
    if squares > 24:
        grids = sorted(
            ((rows, columns) for rows in range(1, 7) for columns in range(1, 6 // rows + 1) if rows * columns > 1),
            key=lambda grid: abs(shape - grid[1] / grid[0]),
        )
        alike = [grid for grid in grids if grid[1] / grid[0] == grids[0][1] / grids[0][0]]
        rows, columns = max([grid for grid in alike if area > 128 * grid[0] * grid[1]], default=min(alike))
        canvas = _resized(pixels, columns * 16, rows * 16)[0]
        views = [canvas[:, y : y + 16, x : x + 16] for y in range(0, rows * 16, 16) for x in range(0, columns * 16, 16)]
    width, height = (max(1, round(side / 8)) for side in image.size)
    if not 4 <= squares <= 12:
        scale = (area / 64 / (12 if squares > 12 else 4)) ** 0.5
        width, height = (
            max(1, int(side / scale / 8)) if squares > 12 else -int(-side / scale // 8) for side in image.size
        )
    views.append(_resized(pixels, width * 8, height * 8)[0])
    patches = torch.zeros(len(views), 48, 48)
    shapes = torch.tensor([(view.shape[1] // 4, view.shape[2] // 4) for view in views])
    for filled, view in zip(patches, views, strict=True):
        cut = view.unfold(1, 4, 4).unfold(2, 4, 4).permute(1, 2, 3, 4, 0).reshape(-1, 48) / 127.5 - 1
        filled[: len(cut)] = cut
    mask = (torch.arange(48) < shapes.prod(1, keepdim=True)).int()
    return {"pixel_values": patches, "spatial_shapes": shapes, "pixel_attention_mask": mask}


TOLERANCE = 1e-4
SETTINGS = {
    "device": "cpu",
    "session_len": 512,
    "cache_max_entry_count": 128,
    "cache_block_seq_len": 16,
    "max_batch_size": 4,
    "num_tokens_per_iter": 20,
}


@dataclass(frozen=True)
class Case:
    """A family: how a checkpoint is made, and how `transformers` is given images."""

    make: Callable[[Path], Path]
    inputs: Callable[[Any, Any, Any], dict[str, Any]] = lambda processor, config, image: processor(
        images=image, return_tensors="pt"
    )
    sizes: tuple[tuple[int, int], ...] = ((40, 60), (90, 31), (28, 28))
    together: bool = False  # an image is processed as one of all in the prompt
    session: int = 160  # tokens of a short one, which has to hold two images
    types: str = ""  # the argument by which `transformers` learns which tokens are of images, if it has to
    processor: Callable[[Path], Any] = lambda directory: transformers.AutoImageProcessor.from_pretrained(
        directory, backend="pil"
    )
    reference: Callable[[Path], Any] | None = None  # in place of `transformers`, which does not have it
    dtype: torch.dtype = torch.float32  # in which `transformers` computes
    settings: dict[str, Any] = field(default_factory=dict)  # of the engine


def _cropped(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    inputs: dict[str, Any] = processor(images=image, crop_to_patches=True, return_tensors="pt")
    return inputs


def _nested(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    inputs: dict[str, Any] = processor(images=[[image]], return_tensors="pt")
    return inputs


def _of_large_patches(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    inputs: dict[str, Any] = processor(images=image, patch_size=28, return_tensors="pt")
    return inputs


WIDE = ((40, 60), (90, 31), (300, 150))
MINISTRAL3 = {
    "model_type": "ministral3",
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "llama_4_scaling_beta": 0.5,
    },
}
QwenCase = partial(Case, sizes=WIDE, types="mm_token_type_ids")
CASES = {
    "LLaVA 1.5": Case(tiny.make_tiny_llava),
    "LLaVA 1.6": Case(tiny.make_tiny_llava_next),
    "LLaVA-OneVision": Case(
        tiny.make_tiny_llava_onevision,
        lambda processor, config, images: processor(images=[images], return_tensors="pt"),
        together=True,
    ),
    "Pixtral": Case(tiny.make_tiny_pixtral),
    "DeepSeek-VL": Case(tiny.make_tiny_deepseek_vl),
    "DeepSeek-VL of two sizes": Case(tiny.make_tiny_deepseek_vl_hybrid),
    "InternVL": Case(tiny.make_tiny_internvl, _cropped),
    "InternVL on Qwen3 with experts": Case(partial(tiny.make_tiny_internvl, text="qwen3_moe"), _cropped),
    "InternVL on GPT-OSS": Case(partial(tiny.make_tiny_internvl, text="gpt_oss"), _cropped),
    "InternVL as its authors publish it": Case(tiny_own_layouts.make_tiny_internvl_chat, _cropped),
    "InternVL with InternLM2 and a tower of 6B's kind": Case(
        partial(tiny_own_layouts.make_tiny_internvl_chat, text="internlm2", normed=True), _cropped
    ),
    "LLaVA 1.5 as its authors publish it": Case(tiny_own_layouts.make_tiny_llava_original),
    "LLaVA 1.6 as its authors publish it": Case(partial(tiny_own_layouts.make_tiny_llava_original, tiles=True)),
    "LLaVA 1.6 on Mistral as its authors publish it": Case(
        partial(tiny_own_layouts.make_tiny_llava_original, kind="mistral", tiles=True)
    ),
    "DeepSeek-VL as its authors publish it": Case(tiny_own_layouts.make_tiny_deepseek_vl_original),
    "DeepSeek-VL of two sizes as its authors publish it": Case(
        partial(tiny_own_layouts.make_tiny_deepseek_vl_original, has_two=True)
    ),
    "Phi-3-vision": Case(make_tiny_phi3_vision, reference=Phi3VisionReference),
    "Yi-VL": Case(make_tiny_yi_vl, reference=YiVlReference),
    "Llama 3.2 Vision": Case(make_tiny_mllama, sizes=((40, 60), (90, 31), (200, 200)), reference=MllamaReference),
    "Molmo": Case(make_tiny_molmo, reference=MolmoReference),
    "XComposer2": Case(make_tiny_xcomposer, reference=XComposerReference),
    "XComposer2 4KHD": Case(partial(make_tiny_xcomposer, tiles=True), reference=XComposerReference),
    "CogVLM": Case(partial(make_tiny_cogvlm, second=False), reference=CogVlmReference),
    "CogVLM2": Case(make_tiny_cogvlm, reference=CogVlmReference),
    "Mono-InternVL": Case(make_tiny_mono_internvl, reference=MonoInternVlReference),
    "Molmo 7B-O": Case(partial(make_tiny_molmo, kind="7B-O"), reference=MolmoReference),
    "MolmoE": Case(partial(make_tiny_molmo, kind="MolmoE"), reference=MolmoReference),
    "Qwen-VL": Case(make_tiny_qwen_vl_chat, reference=QwenVlReference),
    "GLM-4V": Case(make_tiny_glm_4v, reference=Glm4vReference),
    "MiniCPM-V 2.5": Case(partial(make_tiny_minicpmv, version=2.5), reference=MiniCpmReference),
    "MiniCPM-V 2.6": Case(make_tiny_minicpmv, reference=MiniCpmReference),
    "MiniCPM-V 4": Case(partial(make_tiny_minicpmv, version=4.0), reference=MiniCpmReference),
    "MiniCPM-V 4.5": Case(partial(make_tiny_minicpmv, version=4.5), reference=MiniCpmReference),
    "Idefics 3": Case(tiny.make_tiny_idefics3, _nested),
    "SmolVLM": Case(partial(tiny.make_tiny_idefics3, kind="SmolVLM"), _nested),
    "Mistral 3": Case(tiny.make_tiny_mistral3, _of_large_patches, sizes=WIDE),
    "Ministral 3": Case(partial(tiny.make_tiny_mistral3, text=MINISTRAL3), _of_large_patches, sizes=WIDE),
    "Qwen2-VL": QwenCase(tiny.make_tiny_qwen_vl),
    "Qwen2.5-VL": QwenCase(partial(tiny.make_tiny_qwen_vl, kind="Qwen2_5_VL")),
    "Qwen3-VL": QwenCase(partial(tiny.make_tiny_qwen_vl, kind="Qwen3VL")),
    "Qwen3-VL, experts": QwenCase(partial(tiny.make_tiny_qwen_vl, kind="Qwen3VLMoe")),
    "Qwen3.5": QwenCase(partial(tiny.make_tiny_qwen_vl, kind="Qwen3_5")),
    "Qwen3.5, experts": QwenCase(partial(tiny.make_tiny_qwen_vl, kind="Qwen3_5Moe")),
    "Qwen 4": QwenCase(partial(tiny.make_tiny_qwen_vl, kind="Qwen4Exp")),
    "LFM3-VL": Case(tiny.make_tiny_lfm3_vl, sizes=WIDE),
    "EXAONE 4.5": Case(tiny.make_tiny_exaone4_5, sizes=WIDE),
    "Qianfan-OCR": Case(tiny.make_tiny_qianfan_ocr, _cropped),
    "Granite Docling": Case(tiny.make_tiny_granite_docling, _nested),
    "Granite Docling, fine": Case(partial(tiny.make_tiny_granite_docling, fine=True), _nested),
    "MiniMax-M3": Case(
        tiny.make_tiny_minimax_m3,
        sizes=WIDE,
        processor=lambda directory: transformers.Qwen2VLImageProcessorPil(
            size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}
        ),
    ),
    "GLM-4.1V": QwenCase(tiny.make_tiny_glm4v),
    "GLM-4.5V": QwenCase(partial(tiny.make_tiny_glm4v, kind="Glm4vMoe")),
    "GLM-4.6V": QwenCase(partial(tiny.make_tiny_glm4v, kind="Glm46V")),
    "GLM-OCR": QwenCase(partial(tiny.make_tiny_glm4v, kind="GlmOcr")),
    "PaddleOCR-VL": QwenCase(tiny.make_tiny_paddleocr_vl),
    "LightOnOCR": Case(tiny.make_tiny_lighton_ocr, sizes=WIDE),
    "GOT-OCR 2.0": Case(tiny.make_tiny_got_ocr),
    "DeepSeek-OCR 2": Case(tiny.make_tiny_deepseek_ocr, sizes=((40, 60), (120, 60)), session=352),
    "DeepSeek-OCR 2 as its authors publish it": Case(
        tiny_own_layouts.make_tiny_deepseek_ocr_published,
        sizes=((40, 60), (120, 60)),
        session=640,
        settings={"session_len": 1024},
    ),
    "Aya Vision": Case(tiny.make_tiny_aya_vision, _cropped),
    "Ovis 2": Case(tiny.make_tiny_ovis2),
    "MiniCPM-V 4.6": Case(tiny.make_tiny_minicpmv_4_6, together=True),
    "Command A Vision": Case(
        tiny.make_tiny_command_a_vision, command_a_vision_inputs, processor=lambda directory: None
    ),
    "Kimi K2.5": Case(tiny.make_tiny_kimi, kimi_inputs, sizes=WIDE, processor=lambda directory: None),
    "LFM2-VL": Case(
        tiny.make_tiny_lfm2_vl,
        lfm2_vl_inputs,
        sizes=((40, 60), (90, 31), (30, 24), (7, 9)),
        processor=lambda directory: None,
    ),
    "Llama 4": Case(tiny.make_tiny_llama4, llama4_inputs, processor=lambda directory: None),
    "Gemma 3": Case(tiny.make_tiny_gemma3, types="token_type_ids"),
    "Gemma 3, images longer than the window": Case(partial(tiny.make_tiny_gemma3, window=9), types="token_type_ids"),
    # In float32 each side is off by up to 7e-5.
    "Gemma 4 E2B": Case(tiny.make_tiny_gemma4, types="mm_token_type_ids", session=192, dtype=torch.float64),
    "Gemma 4 31B": Case(partial(tiny.make_tiny_gemma4, kind="31B"), types="mm_token_type_ids", session=192),
    "Gemma 4 26B": Case(partial(tiny.make_tiny_gemma4, kind="26B"), types="mm_token_type_ids", session=192),
}


# Outputs of image processors that models take besides pixels.
FORWARDED = {"image_sizes", "image_grid_thw", "image_position_ids", "batch_num_images", "target_sizes"}
FORWARDED |= {"num_local_patches", "tile_fine_mask", "spatial_shapes"}


@dataclass
class Seeing:
    """A model on both sides."""

    directory: Path
    hf_module: Any
    processor: Any
    case: Case

    def logits(self, ids: list[int], images: list[Image.Image]) -> torch.Tensor:
        """Return the logits of `transformers`, or of the reference, at each token."""
        if self.case.reference is not None:
            whole: torch.Tensor = self.hf_module(ids, images).float()
            return whole
        shown: list[Any] = [images] if self.case.together and images else images
        given = [self.case.inputs(self.processor, self.hf_module.config, image) for image in shown]
        arguments = {
            name: torch.cat([torch.as_tensor(one[name]) for one in given])
            for name in (given[0] if given else {})
            if "pixel" in name or name in FORWARDED
        }
        tokens = torch.tensor([ids])
        if self.case.types:
            arguments[self.case.types] = (tokens == self.hf_module.config.image_token_id).int()
        arguments = {
            name: value.to(self.case.dtype) if value.is_floating_point() else value for name, value in arguments.items()
        }
        with torch.inference_mode():
            logits: torch.Tensor = self.hf_module(input_ids=tokens, **arguments).logits[0].float()
        return logits

    def engine(self, **settings: Any) -> AsyncEngine:
        return pipeline(
            str(self.directory), TurbomindEngineConfig(**(WITHOUT_REUSE | SETTINGS | self.case.settings | settings))
        )


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Seeing]:
    case = CASES[request.param]
    directory = case.make(tmp_path_factory.mktemp("seeing") / "model")
    if case.reference is not None:
        return case, Seeing(directory, case.reference(directory), None, case)
    native = tiny_own_layouts.native_of(directory) if tiny_own_layouts.native_of(directory).is_dir() else directory
    hf_module = transformers.AutoModelForImageTextToText.from_pretrained(native, dtype=case.dtype)
    processor = case.processor(native)
    return case, Seeing(directory, hf_module, processor, case)


@pytest.fixture(scope="module")
def engine(model: tuple[Case, Seeing]) -> Iterator[AsyncEngine]:
    with model[1].engine(enable_prefix_caching=True) as made:
        yield made


ALL = GenerationConfig(max_new_tokens=6, output_logits="all", do_sample=False, ignore_eos=True)
GENERATED = GenerationConfig(max_new_tokens=6, output_logits="generation", do_sample=False, ignore_eos=True)


@pytest.mark.alike(max_cases=48)
def test_logits_equal_transformers_in_chunks_and_after_cached_prefixes(
    model: tuple[Case, Seeing], engine: AsyncEngine
) -> None:
    case, seeing = model
    for seed, size in enumerate(case.sizes):
        image = make_image(*size, seed)
        prompt = ("what is in this picture, and where?", image)
        ids = engine.prepare(prompt).ids
        whole = engine(prompt, ALL)
        expected = seeing.logits(ids + whole.token_ids, [image])
        assert relative_error(whole.logits[: len(ids)], expected[: len(ids)]) < TOLERANCE
        before = engine.engine.metrics()["prefix_cache_hits_total"]
        engine(prompt, GENERATED)  # publishes its blocks
        again = engine(prompt, GENERATED)
        assert engine.engine.metrics()["prefix_cache_hits_total"] > before
        assert again.token_ids == whole.token_ids
        assert relative_error(again.logits, expected[len(ids) - 1 : -1][: len(again.logits)]) < TOLERANCE


@pytest.mark.alike(max_cases=5)
def test_texts_alone_are_computed_as_by_transformers(model: tuple[Case, Seeing], engine: AsyncEngine) -> None:
    prompt = "what can be seen where nothing is shown? " * 2
    response = engine(prompt, ALL)
    ids = engine.prepare(prompt).ids
    assert relative_error(response.logits[: len(ids)], model[1].logits(ids, [])[: len(ids)]) < TOLERANCE


@pytest.mark.alike(max_cases=7)
def test_several_images_stand_where_the_message_has_them(model: tuple[Case, Seeing], engine: AsyncEngine) -> None:
    _, seeing = model
    one, two = make_image(40, 60, 5), make_image(40, 60, 6)
    messages = [
        {"role": "user", "content": [_part(one), {"type": "text", "text": "first"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [_part(two), {"type": "text", "text": "and this?"}]},
    ]
    response = engine(messages, ALL)
    ids = engine.prepare(messages).ids
    assert relative_error(response.logits[: len(ids)], seeing.logits(ids, [one, two])) < TOLERANCE


def _part(image: Image.Image) -> dict[str, Any]:
    return {"type": "image_data", "image_data": {"data": image}}


@pytest.mark.alike(max_cases=5)
def test_responses_are_bitwise_equal_alone_and_in_a_batch_with_text_and_other_images(
    model: tuple[Case, Seeing],
) -> None:
    config = GenerationConfig(
        max_new_tokens=12, do_sample=True, temperature=0.9, top_k=0, random_seed=5, logprobs=3, ignore_eos=True
    )
    prompts: list[Any] = [
        ("what is it?", make_image(40, 60)),
        "only a text",
        ("what is it?", make_image(40, 60, 1)),
        ("another", [make_image(90, 31), make_image(28, 28)]),
    ]

    def trace(response: Any) -> tuple[Any, ...]:
        return response.token_ids, [list(entry.items()) for entry in response.logprobs]

    with model[1].engine() as baseline:
        alone = [trace(baseline(prompt, config)) for prompt in prompts]
        assert alone[0] != alone[2], "the image makes no difference"
        assert [trace(reply) for reply in baseline(prompts, config)] == alone
        both = baseline(prompts[0], replace(config, n=2))
        assert trace(both[0]) == alone[0]
    session = model[0].session
    with model[1].engine(
        cache_max_entry_count=session // 16 + 2, session_len=session, enable_prefix_caching=True
    ) as short:
        for _ in range(2):
            assert [trace(reply) for reply in short(prompts * 2, config)] == alone * 2


def test_steps_hold_an_image_whose_tokens_see_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tiny.make_tiny_gemma3(tmp_path / "model")
    prompt = ("what is it?", make_image(40, 60))
    responses = []
    for tokens in (8, 64):
        settings = TurbomindEngineConfig(**(WITHOUT_REUSE | SETTINGS | {"num_tokens_per_iter": tokens}))
        with pipeline(str(directory), settings) as pipe:
            responses.append(pipe(prompt, ALL))
    assert f"a step holds {tiny.GEMMA3_ROWS + 4} tokens instead of 8" in caplog.text
    assert torch.equal(*(response.logits for response in responses))


@pytest.mark.alike(max_cases=7)
def test_a_prompt_has_as_many_tokens_for_an_image_as_the_tower_gives_rows(engine: AsyncEngine) -> None:
    encoder = engine._preparer.encoder  # type: ignore[attr-defined]
    writer = engine._preparer._images
    for width, height in [(2, 2), (30, 29), (300, 7), (7, 300), (200, 199), (64, 48), (28, 56), (57, 113)]:
        image = make_image(width, height)
        rows = encoder._family.features(encoder._part, image, {})
        written = writer.family.expansion(writer.part, image.size, {})  # type: ignore[union-attr]
        of_token = 1 if writer.family.has_cross_attention else len(rows)  # type: ignore[union-attr]
        tokens = (writer.family.token, *writer.family.seen_words)  # type: ignore[union-attr]
        assert sum(map(written.count, tokens)) == of_token, (width, height)
