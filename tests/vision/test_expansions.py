"""An image stands for as many tokens as the processors of `transformers` write, at the sizes of published models."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import (
    AyaVisionProcessor,
    Cohere2VisionConfig,
    DeepseekOcr2Processor,
    DeepseekVLConfig,
    DeepseekVLImageProcessorPil,
    GotOcr2Processor,
    GraniteDoclingProcessor,
    LightOnOcrProcessor,
    LlavaConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionImageProcessorPil,
    MiniCPMV4_6Processor,
    MiniMaxM3VLProcessor,
    Ovis2Processor,
    PaddleOCRVLProcessor,
    PixtralImageProcessorPil,
    QianfanOCRProcessor,
    SiglipVisionConfig,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

from lmdeploy.vl.families import cohere, deepseek_vl, glm, lfm2_vl, llava, minicpmv, mistral3, molmo, phi3_vision
from lmdeploy.vl.families.common import VisionPart
from lmdeploy.vl.tower import counting_part, family_in
from tests.support import tiny_vision_models as tiny
from tests.support.images import make_image

_RANDOM = random.Random(0)
SIZES = [
    (1024, 1024), (1025, 1024), (384, 384), (16, 16), (17, 2000), (2, 400),
    *((_RANDOM.randint(2, 3000), _RANDOM.randint(20, 3000)) for _ in range(60)),
]  # fmt: skip


# How a checkpoint is made; its processor in `transformers`, what that has of it, and how it is called.
WRITTEN: dict[str, tuple[Callable[[Path], Path], Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "Aya Vision": (
        tiny.make_tiny_aya_vision,
        AyaVisionProcessor,
        {
            "img_size": 28, "patch_size": 28, "tile_token": "TILE", "tile_global_token": "TILE_GLOBAL",
            "img_patch_token": "<|IMG_PATCH|>", "start_of_img_token": "<|START_OF_IMG|>",
            "end_of_img_token": "<|END_OF_IMG|>",
        },
        {"crop_to_patches": True},
        {},
    ),
    "DeepSeek-OCR 2": (
        tiny.make_tiny_deepseek_ocr,
        DeepseekOcr2Processor,
        {"image_token": "<image>", "patch_size": 2, "downsample_ratio": 4},
        {},
        {},
    ),
    "GOT-OCR 2.0": (
        tiny.make_tiny_got_ocr,
        GotOcr2Processor,
        {"image_token": "<imgpad>"},
        {},
        {"num_pages_per_batch": [1], "patch_indices": [1], "num_image_tokens": 4},
    ),
    "Granite Docling": (
        tiny.make_tiny_granite_docling,
        GraniteDoclingProcessor,
        {
            "image_token": "<image>", "image_seq_len": 1, "fake_image_token": "<fake_token_around_image>",
            "global_image_tag": "<global-img>",
        },
        {},
        {},
    ),
    "Qianfan-OCR": (
        tiny.make_tiny_qianfan_ocr,
        QianfanOCRProcessor,
        {
            "image_token": "<IMG_CONTEXT>", "image_seq_length": 1, "start_image_token": "<img>",
            "end_image_token": "</img>",
        },
        {"crop_to_patches": True},
        {},
    ),
    "LightOnOCR": (
        tiny.make_tiny_lighton_ocr,
        LightOnOcrProcessor,
        {"image_token": "<|image_pad|>", "effective_patch_size": 28},
        {},
        {},
    ),
    "MiniMax-M3": (
        tiny.make_tiny_minimax_m3,
        MiniMaxM3VLProcessor,
        {name: value for name, value in vars(MiniMaxM3VLProcessor).items() if name.endswith("_TOKEN")},
        {},
        {},
    ),
    "MiniCPM-V 4.6": (
        tiny.make_tiny_minicpmv_4_6,
        MiniCPMV4_6Processor,
        {
            "image_token": "<|image_pad|>", "image_start_token": "<image>", "image_end_token": "</image>",
            "slice_start_token": "<slice>", "slice_end_token": "</slice>", "slice_mode": True,
        },
        {},
        {"image_token_divisor": 16},
    ),
    "Ovis 2": (tiny.make_tiny_ovis2, Ovis2Processor, {"image_seq_length": 1}, {}, {}),
    "PaddleOCR-VL": (
        tiny.make_tiny_paddleocr_vl, PaddleOCRVLProcessor, {"image_token": "<|IMAGE_PLACEHOLDER|>"}, {}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_images_are_written_as_by_their_processor(name: str, tmp_path: Path) -> None:
    make, processor_class, fields, settings, call = WRITTEN[name]
    directory = make(tmp_path / "model")
    part, found = counting_part(directory), family_in(directory)
    assert found is not None
    processor = SimpleNamespace(image_processor=part.processor, **fields)
    for size in [(28, 28), (40, 60), (90, 31), (31, 90), (120, 60), (200, 199), (640, 480), (57, 400)]:
        inputs = part.processor(images=make_image(*size), return_tensors="pt", **settings)
        expected = processor_class.replace_image_token(processor, inputs, 0, **call)
        assert found[1].expansion(part, size, {}) == expected, size


@pytest.mark.parametrize("max_tiles", [9, 4])
def test_llava_onevision_counts_as_its_processor(max_tiles: int) -> None:
    processor = LlavaOnevisionImageProcessorPil()
    config = LlavaOnevisionConfig(vision_aspect_ratio=f"anyres_max_{max_tiles}")
    part = VisionPart(config, processor)
    reference = SimpleNamespace(
        image_processor=processor, num_image_tokens=729, vision_aspect_ratio=config.vision_aspect_ratio
    )
    reference._get_unpadded_features = lambda *given: LlavaOnevisionProcessor._get_unpadded_features(reference, *given)
    for width, height in SIZES:
        written = llava.llava_onevision_expansion(part, (width, height), {"several": False})
        expected = LlavaOnevisionProcessor._get_number_of_features(reference, height, width, 384, 384)
        assert written == "<image>" * expected, (width, height)
    assert llava.llava_onevision_expansion(part, SIZES[0], {"several": True}) == "<image>" * 730


def test_pixtral_writes_a_token_a_patch_and_a_mark_a_row() -> None:
    part = VisionPart(LlavaConfig(vision_config={"model_type": "pixtral"}), PixtralImageProcessorPil())
    assert part.config.vision_config.patch_size == 16
    for width, height in SIZES:
        pixels = np.broadcast_to(np.uint8(0), (height, width, 3))
        new_height, new_width = get_resize_output_image_size(pixels, size=(1024, 1024), patch_size=(16, 16))
        expected = "[IMG_BREAK]".join(["[IMG]" * (new_width // 16)] * (new_height // 16)) + "[IMG_END]"
        assert mistral3.PIXTRAL.expansion(part, (width, height), {}) == expected, (width, height)


@pytest.mark.parametrize(
    ("max_tiles", "size", "rows", "columns"),
    [(4, (1000, 1000), 2, 2), (16, (1024, 768), 3, 4), (16, (300, 1000), 6, 2), (4, (30, 4000), 4, 1)],
)
def test_phi3_vision_writes_tiles_and_the_whole(max_tiles: int, size: tuple[int, int], rows: int, columns: int) -> None:
    part = VisionPart(LlavaConfig(), phi3_vision.Tiler(336, max_tiles, (0, 0, 0), (1, 1, 1)))
    expected = (rows * columns + 1) * 144 + 1 + (rows + 1) * 12  # the published formula: 757 for the first
    assert phi3_vision.expansion(part, size, {}) == "<|image|>" * expected


@pytest.mark.parametrize(
    ("size", "options", "columns", "rows"),
    [
        ((448, 448), {}, 0, 0),
        ((449, 448), {}, 2, 1),
        ((1344, 1344), {}, 3, 3),
        ((4000, 500), {}, 8, 1),
        ((1344, 1344), {"max_slice_nums": 4}, 2, 2),
        ((1344, 1344), {"max_slice_nums": 400}, 3, 3),
        ((1344, 1344), {"max_slice_nums": 1}, 0, 0),
    ],
)
def test_minicpmv_writes_64_tokens_a_view(
    size: tuple[int, int], options: dict[str, int], columns: int, rows: int
) -> None:
    slicer = minicpmv.Slicer(448, 14, 9, True, (0, 0, 0), (1, 1, 1))
    part = VisionPart(LlavaConfig(image_seq_length=64, is_in_line=False), slicer)
    one = "<unk>" * 64
    lines = [f"<slice>{one}</slice>" * columns for _ in range(rows)]
    assert minicpmv.expansion(part, size, options) == f"<image>{one}</image>" + "\n".join(lines)
    assert minicpmv.number(part, 3, {}) == "<image_id>3</image_id>"
    assert minicpmv.number(part, 3, {"use_image_id": False}) == ""


def test_minicpmv_2_5_writes_96_tokens_a_view_and_one_pair_of_marks_around_all_slices() -> None:
    slicer = minicpmv.Slicer(448, 14, 9, False, (0, 0, 0), (1, 1, 1))
    part = VisionPart(LlavaConfig(image_seq_length=96, is_in_line=True), slicer)
    view = f"<image>{'<unk>' * 96}</image>"
    assert minicpmv.expansion(part, (448, 448), {}) == view
    assert minicpmv.expansion(part, (900, 900), {}) == f"{view}<slice>{view * 2}\n{view * 2}</slice>"
    assert minicpmv.number(part, 3, {}) == ""


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "9", True])
def test_numbers_of_slices_that_are_none_are_refused(wrong: object) -> None:
    slicer = minicpmv.Slicer(448, 14, 9, True, (0, 0, 0), (1, 1, 1))
    with pytest.raises(ValueError, match="max_slice_nums must be a whole number >= 1"):
        slicer.grid((500, 500), {"max_slice_nums": wrong})


# Rows and columns of tiles, and tokens of the whole, as the processor of LFM2-VL says with torchvision 0.28.
@pytest.mark.parametrize(
    ("size", "rows", "columns", "whole"),
    [
        ((512, 512), 1, 1, 256),
        ((1024, 1024), 2, 2, 256),
        ((300, 40), 1, 1, 66),
        ((1600, 900), 2, 4, 252),
        ((2000, 600), 1, 3, 232),
    ],
)
def test_lfm2_vl_writes_tiles_after_tags_and_the_whole(
    size: tuple[int, int], rows: int, columns: int, whole: int, tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"do_image_splitting": true}')
    tags = [f"<|img_row_{row}_col_{column}|>" for row in range(1, rows + 1) for column in range(1, columns + 1)]
    tiles = "".join(tag + "<image>" * 256 for tag in tags) + "<|img_thumbnail|>" if len(tags) > 1 else ""
    expected = f"<|image_start|>{tiles}{'<image>' * whole}<|image_end|>"
    assert lfm2_vl.expansion(VisionPart(None, lfm2_vl.processor(tmp_path)), size, {}) == expected


# Views as the processor of Command A Vision says with torchvision 0.28.
@pytest.mark.parametrize(
    ("size", "views"),
    [((512, 512), 1), ((1024, 768), 5), ((300, 40), 1), ((1600, 900), 9), ((3000, 200), 7)],
)
def test_command_a_vision_writes_256_tokens_a_view(size: tuple[int, int], views: int, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 512, "width": 512}}')
    part = VisionPart(
        Cohere2VisionConfig(vision_config={"model_type": "siglip_vision_model", "image_size": 512, "patch_size": 16}),
        cohere.processor(tmp_path),
    )
    expected = f"<|START_OF_IMG|>{('<|IMG_PATCH|>' * 256 + '<|IMG_LINE_BREAK|>') * views}<|END_OF_IMG|>"
    assert cohere.command_expansion(part, size, {}) == expected


def test_deepseek_vl_writes_576_tokens() -> None:
    tower = SiglipVisionConfig(image_size=384, patch_size=16)
    part = VisionPart(DeepseekVLConfig(vision_config=tower), DeepseekVLImageProcessorPil())
    assert deepseek_vl.DEEPSEEK_VL.expansion(part, (640, 480), {}) == "<image_placeholder>" * 576


def test_glm_4v_writes_1602_tokens() -> None:
    config = LlavaConfig(vision_config={"model_type": "clip_vision_model", "image_size": 1120, "patch_size": 14})
    part = VisionPart(config, None)
    assert glm.GLM_4V_9B.expansion(part, (640, 480), {}) == "<|begin_of_image|>" * 1602


@pytest.mark.parametrize(
    ("size", "rows", "columns"),
    [((336, 336), 12, 12), ((1024, 768), 28, 36), ((100, 90), 12, 12), ((6000, 1000), 12, 60)],
)
def test_molmo_writes_the_whole_and_its_crops_line_by_line(size: tuple[int, int], rows: int, columns: int) -> None:
    part = VisionPart(LlavaConfig(), molmo.Cropper(336, 14, 12, (4, 4)))
    whole, crops = 12 * (12 + 1) + 2, rows * (columns + 1) + 2
    assert molmo.expansion(part, size, {}) == "|<EXTRA_TOKENS_0>|" * (whole + crops)
