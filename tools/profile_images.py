"""What images cost: ``python -m tools.profile_images``.

A LLaVA of random weights, its tower of the size of CLIP ViT-L/14-336, is shown images of a megapixel:

- *prepare*: from a JPEG's bytes to rows that the engine takes, alongside tower and projector alone in ``transformers``
- *together*: eight different images at once, alongside one after another
- *again*: the first token of a second question about an image, alongside the first
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.vl.decoding import Limits, decode
from lmdeploy.vl.encoder import VisionEncoder, digest_of
from lmdeploy.vl.tower import family_in, seeing_part
from tools.bench import arguments as flags
from tools.bench.quiet import TIMEOUT, wait_until_quiet
from tools.bench.random_model import write_tokenizer
from tools.bench.report import machine, table
from tools.bench.stats import median
from tools.bench.turns import ratio, take_turns

SIDE = 336
PATCH = 14
ROWS = (SIDE // PATCH) ** 2
TOGETHER = 8
VOCABULARY = 49152
# Title, what is measured, and the most, or least, it may be of what it is alongside.
TARGETS = {
    "prepare": ("one image, from JPEG to rows / the tower alone", "<=", 1.1),
    "together": ("eight images at once / in turn", "<=", 1.0),
    "again": ("first token: first question / second", ">=", 5.0),
}
_TEMPLATE = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
)


def write_model(directory: Path) -> Path:
    """Write the checkpoint: a small decoder of SmolLM2-135M's shape, and CLIP's tower."""
    from transformers import (
        AutoTokenizer,
        CLIPImageProcessorPil,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    directory.mkdir(parents=True)
    write_tokenizer(directory, VOCABULARY - 259)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(directory)
    config = LlavaConfig(
        vision_config={
            "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "projection_dim": 768,
            "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": SIDE, "patch_size": PATCH,
        },
        text_config={
            "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": VOCABULARY, "tie_word_embeddings": True,
            "max_position_embeddings": 8192, "bos_token_id": VOCABULARY - 3, "eos_token_id": VOCABULARY - 2,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=True,
    )  # fmt: skip
    sizes = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    CLIPImageProcessorPil(**sizes).save_pretrained(directory)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlavaForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(directory)
    return directory


def jpegs(seed: int) -> Iterator[bytes]:
    """Yield files of different images of a megapixel, as smooth as photographs."""
    random = np.random.default_rng(seed)
    while True:
        coarse = Image.fromarray(random.integers(0, 256, (40, 60, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((1216, 832), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        yield file.getvalue()


def seconds(run: Callable[[], object]) -> float:
    """Return how long something takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def prepare(encoder: VisionEncoder, content: bytes) -> None:
    """Make rows of a file, as the engine takes them."""
    image = decode(content, Limits())
    encoder.rows(image, {}, digest_of(image, {}))


def measure_alone(checkpoint: Path, rounds: int, files: Iterator[bytes], quiet: Callable[[], None]) -> float:
    """Return preparing an image over the tower alone."""
    part, found_family = seeing_part(checkpoint), family_in(checkpoint)
    assert found_family is not None
    encoder, model = VisionEncoder(found_family[1], part), part.model
    pixels = torch.zeros(1, 3, SIDE, SIDE, dtype=model.dtype).normal_()

    def tower() -> None:
        with torch.inference_mode():
            model.get_image_features(pixel_values=pixels)

    prepare(encoder, next(files))
    tower()
    sides = {"prepare": lambda: seconds(lambda: prepare(encoder, next(files))), "tower": lambda: seconds(tower)}
    found = take_turns(sides, rounds, "{:.3f} s".format, before=quiet)
    return ratio(found["prepare"], found["tower"])


def measure_questions(
    checkpoint: Path, rounds: int, files: Iterator[bytes], quiet: Callable[[], None]
) -> tuple[float, float]:
    """Return eight images at once over in turn, and the first question's first token over the second's."""
    one = GenerationConfig(max_new_tokens=1, ignore_eos=True)
    settings = TurbomindEngineConfig(session_len=2048, cache_max_entry_count=0.1)
    with pipeline(str(checkpoint), settings) as pipe:

        def asked() -> list[Any]:
            return [("what is it?", decode(next(files), Limits())) for _ in range(TOGETHER)]

        def in_turn() -> float:
            prompts = asked()
            return seconds(lambda: [pipe(prompt, one) for prompt in prompts])

        def at_once() -> float:
            prompts = asked()
            return seconds(lambda: pipe(prompts, one))

        pipe(asked()[0], one)
        sides = {"at once": at_once, "in turn": in_turn}
        found = take_turns(sides, rounds, "{:.2f} s".format, before=quiet)
        first, second = [], []
        for _ in range(2 * rounds):
            image = decode(next(files), Limits())
            first.append(seconds(partial(pipe, ("what is it?", image), one)))
            second.append(seconds(partial(pipe, ("and what colour is it?", image), one)))
        print(f"   first question {median(first):.3f} s, second {median(second):.3f} s", flush=True)
    return ratio(found["at once"], found["in turn"]), ratio(first, second)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.profile_images", description=__doc__)
    parser.add_argument("--rounds", type=flags.positive, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the images")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a quiet machine; 0: none")
    given = parser.parse_args()
    print(f"-- machine: {machine()}", flush=True)
    files, quiet = jpegs(given.seed), partial(wait_until_quiet, given.timeout)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_model(Path(folder) / "llava")
        if "prepare" in given.only:
            found["prepare"] = measure_alone(checkpoint, 2 * given.rounds, files, quiet)
        if {"together", "again"} & set(given.only):
            found["together"], found["again"] = measure_questions(checkpoint, given.rounds, files, quiet)
    rows = []
    for name, value in found.items():
        title, relation, limit = TARGETS[name]
        is_met = value <= limit if relation == "<=" else value >= limit
        rows.append([title, f"{value:.2f}", f"{relation} {limit:g}", "met" if is_met else "missed"])
    print()
    print(table(("ratio, median of the rounds", "measured", "target", ""), rows))


if __name__ == "__main__":
    flags.run(main)
