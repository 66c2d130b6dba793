"""Models that accept videos agree with `transformers` on the same frames, on tiny random checkpoints."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.vl import Video
from tests.support import tiny_vision_models as tiny
from tests.support.images import make_image
from tests.support.token_engine import relative_error

TOLERANCE = 1e-4
UNIT = 28  # pixels of a token's side
ALL = GenerationConfig(max_new_tokens=6, output_logits="all", do_sample=False, ignore_eos=True)


def clip(count: int, width: int, height: int, seconds: float = 0.5, seed: int = 0) -> Video:
    frames = tuple(make_image(width, height, 100 * seed + i) for i in range(count))
    return Video(frames, tuple(i * seconds for i in range(count)))


def pixels_of(frames: Any, size: tuple[int, int], processor: Any) -> torch.Tensor:
    """Return frames [frames, 3, height, width], resized and normalised."""
    arrays = [np.asarray(frame.resize(size, Image.Resampling.BICUBIC), dtype=np.float32) / 255 for frame in frames]
    scaled = (np.stack(arrays) - np.float32(processor.image_mean)) / np.float32(processor.image_std)
    return torch.from_numpy(scaled).permute(0, 3, 1, 2).contiguous()


def patches_of(pixels: torch.Tensor) -> torch.Tensor:
    """Return the patches of pairs of frames [patches, pixels], four of a square of 28 pixels one after another."""
    if len(pixels) % 2:
        pixels = torch.cat([pixels, pixels[-1:]])
    rows, columns = pixels.shape[2] // UNIT, pixels.shape[3] // UNIT
    blocks = pixels.reshape(len(pixels) // 2, 2, 3, rows, 2, 14, columns, 2, 14)
    return blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * 2 * 14 * 14)


def positions_of(ids: list[int], video: int, grid: tuple[int, int, int], step: float) -> torch.Tensor:
    """Return positions [3, 1, tokens] of a text with one video: what comes after is after its last position."""
    count, begin = grid[0] * grid[1] * grid[2], ids.index(video)
    steps = [int(frame * step) for frame in range(grid[0])]
    positions = [(t, row, column) for t in steps for row in range(grid[1]) for column in range(grid[2])]
    after = begin + max(max(position) for position in positions) + 1
    rows = [(i, i, i) for i in range(begin)]
    rows += [(begin + t, begin + row, begin + column) for t, row, column in positions]
    rows += [(after + i, after + i, after + i) for i in range(len(ids) - begin - count)]
    return torch.tensor(rows).T.unsqueeze(1)


def qwen_inputs(
    processor: Any, config: Any, video: Video, ids: list[int], *, size: tuple[int, int], step: float | None
) -> dict[str, Any]:
    grid = ((len(video.frames) + 1) // 2, size[1] // UNIT, size[0] // UNIT)
    inputs = {
        "pixel_values_videos": patches_of(pixels_of(video.frames, size, processor)),
        "video_grid_thw": torch.tensor([[grid[0], grid[1] * 2, grid[2] * 2]]),
    }
    if step is None:  # all at positions of the text
        return inputs
    if step:
        return inputs | {"position_ids": positions_of(ids, config.video_token_id, grid, step)}
    stands = config.image_token_id if config.model_type.startswith("glm") else config.video_token_id
    types = [2 if token == stands else 0 for token in ids]
    return inputs | {"mm_token_type_ids": torch.tensor([types])}


def tiles(processor: Any, config: Any, video: Video, ids: list[int]) -> dict[str, Any]:
    pixels = [processor(images=one, crop_to_patches=False, return_tensors="pt")["pixel_values"] for one in video.frames]
    return {"pixel_values": torch.cat(pixels)}


def views(processor: Any, config: Any, video: Video, ids: list[int]) -> dict[str, Any]:
    side = (tiny.IMAGE_SIDE, tiny.IMAGE_SIDE)
    return {"pixel_values_videos": pixels_of(video.frames, side, processor)[None]}


def wholes(processor: Any, config: Any, video: Video, ids: list[int]) -> dict[str, Any]:
    inputs = processor(images=[list(video.frames)], do_image_splitting=False, return_tensors="pt")
    return {"pixel_values": inputs["pixel_values"], "pixel_attention_mask": inputs["pixel_attention_mask"]}


def pooled(processor: Any, config: Any, video: Video, ids: list[int]) -> dict[str, Any]:
    found = processor(images=list(video.frames), return_tensors="pt")
    return {
        "pixel_values_videos": found["pixel_values"],
        "video_position_ids": found["image_position_ids"],
        "num_frames_per_video": torch.tensor([len(video.frames)]),
        "mm_token_type_ids": torch.tensor([[2 if token == config.video_token_id else 0 for token in ids]]),
    }


@dataclass(frozen=True)
class Case:
    make: Callable[[Path], Path]
    inputs: Callable[[Any, Any, Video, list[int]], dict[str, Any]]
    video: Video


CASES = {
    "Qwen2-VL": Case(tiny.make_tiny_qwen_vl, functools.partial(qwen_inputs, size=(84, 56), step=1), clip(6, 84, 56)),
    "Qwen2-VL, more times than rows and columns": Case(
        tiny.make_tiny_qwen_vl, functools.partial(qwen_inputs, size=(28, 56), step=1), clip(9, 31, 50)
    ),
    "Qwen2.5-VL": Case(
        functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen2_5_VL"),
        functools.partial(qwen_inputs, size=(56, 84), step=4 * 2 / 3),  # 4 positions a second, 3 frames a second
        clip(7, 56, 90, seconds=1 / 3),
    ),
    "Qwen2.5-VL, frames close together": Case(
        functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen2_5_VL"),
        functools.partial(qwen_inputs, size=(56, 56), step=0.4),
        clip(8, 56, 56, seconds=0.05),
    ),
    "Qwen3-VL": Case(
        functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen3VL"),
        functools.partial(qwen_inputs, size=(84, 56), step=0),
        clip(5, 84, 56, seconds=0.7),
    ),
    "GLM-4.1V": Case(
        tiny.make_tiny_glm4v, functools.partial(qwen_inputs, size=(84, 56), step=0), clip(5, 84, 56, seconds=0.7)
    ),
    "Qwen3.5": Case(
        functools.partial(tiny.make_tiny_qwen_vl, kind="Qwen3_5"),
        functools.partial(qwen_inputs, size=(84, 56), step=0),
        clip(5, 84, 56, seconds=0.7),
    ),
    "GLM-4.6V": Case(
        functools.partial(tiny.make_tiny_glm4v, kind="Glm46V"),
        functools.partial(qwen_inputs, size=(84, 56), step=0),
        clip(5, 84, 56, seconds=0.7),
    ),
    "GLM-4.5V": Case(
        functools.partial(tiny.make_tiny_glm4v, kind="Glm4vMoe"),
        functools.partial(qwen_inputs, size=(84, 56), step=0),
        clip(5, 84, 56, seconds=0.7),
    ),
    "EXAONE 4.5": Case(
        tiny.make_tiny_exaone4_5, functools.partial(qwen_inputs, size=(84, 56), step=None), clip(5, 84, 56)
    ),
    "LFM3-VL": Case(tiny.make_tiny_lfm3_vl, functools.partial(qwen_inputs, size=(84, 56), step=None), clip(5, 84, 56)),
    "Gemma 4": Case(tiny.make_tiny_gemma4, pooled, clip(4, 40, 60, seconds=40)),
    "Gemma 4 with rows that see each other": Case(
        functools.partial(tiny.make_tiny_gemma4, kind="31B"), pooled, clip(3, 60, 40)
    ),
    "InternVL": Case(tiny.make_tiny_internvl, tiles, clip(4, 40, 60)),
    "LLaVA-OneVision": Case(tiny.make_tiny_llava_onevision, views, clip(3, 40, 60)),
    "SmolVLM 2": Case(functools.partial(tiny.make_tiny_idefics3, kind="SmolVLM"), wholes, clip(3, 40, 60, seconds=40)),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path]:
    chosen = CASES[request.param]
    return chosen, chosen.make(tmp_path_factory.mktemp("watching") / "model")


def engine_of(directory: Path, **settings: Any) -> AsyncEngine:
    usual: dict[str, Any] = {
        "device": "cpu",
        "session_len": 512,
        "cache_max_entry_count": 128,
        "cache_block_seq_len": 16,
        "max_batch_size": 4,
        "num_tokens_per_iter": 20,
    }
    return pipeline(str(directory), TurbomindEngineConfig(**(usual | settings)))


def test_logits_over_a_video_equal_transformers_in_chunks_and_after_cached_prefixes(case: tuple[Case, Path]) -> None:
    chosen, directory = case
    reference = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")
    with engine_of(directory, enable_prefix_caching=True) as engine:
        prompt = ("what happens here, and when?", chosen.video)
        ids = engine.prepare(prompt).ids
        response = engine(prompt, ALL)
        whole = ids + response.token_ids
        with torch.inference_mode():
            inputs = chosen.inputs(processor, reference.config, chosen.video, whole)
            expected = reference(input_ids=torch.tensor([whole]), **inputs).logits[0]
        assert relative_error(response.logits[: len(whole)], expected[: len(response.logits)]) < TOLERANCE
        settings = GenerationConfig(max_new_tokens=6, output_logits="generation", do_sample=False, ignore_eos=True)
        engine(prompt, settings)  # publishes its blocks
        before = engine.engine.metrics()["prefix_cache_hits_total"]
        again = engine(prompt, settings)
        assert engine.engine.metrics()["prefix_cache_hits_total"] > before
        assert relative_error(again.logits, expected[len(ids) - 1 :][: len(again.logits)]) < TOLERANCE


def test_responses_about_videos_are_bitwise_equal_alone_and_in_a_batch(case: tuple[Case, Path]) -> None:
    chosen, directory = case
    config = GenerationConfig(
        max_new_tokens=12, do_sample=True, temperature=0.9, top_k=0, random_seed=5, logprobs=3, ignore_eos=True
    )
    frames = chosen.video.frames
    other = Video((*frames[:-1], frames[0]), chosen.video.times)
    prompts: list[Any] = [("what?", chosen.video), "only a text", ("what?", other), ("what?", make_image(40, 60))]
    with engine_of(directory) as engine:
        alone = [engine(prompt, config) for prompt in prompts]
        traces = [(one.token_ids, [list(entry.items()) for entry in one.logprobs]) for one in alone]
        assert traces[0] != traces[2], "the last frame makes no difference"
        together = engine(prompts, config)
        assert [(one.token_ids, [list(entry.items()) for entry in one.logprobs]) for one in together] == traces


def test_a_text_after_a_video_and_an_image_stands_where_it_does_without_chunks(case: tuple[Case, Path]) -> None:
    chosen, directory = case
    content = [
        {"type": "image_data", "image_data": {"data": make_image(40, 60)}},
        {"type": "video_data", "video_data": {"data": chosen.video}},
        {"type": "text", "text": "compare"},
    ]
    responses = []
    for tokens in (7, 512):
        with engine_of(directory, num_tokens_per_iter=tokens) as engine:
            responses.append(engine([{"role": "user", "content": content}], ALL))
    assert torch.equal(*(response.logits for response in responses))
