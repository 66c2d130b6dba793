"""A library's latent attention: its plan, what surrounds its kernel, and that only one which agrees with ours is used.

The kernel itself is emulated here: plain loops that follow the plan as FlashInfer's kernels do.
"""

import itertools
import random
from typing import Any

import pytest
import torch

from tests.kernels.arguments import AttentionRule, HeadSizes
from tests.kernels.device import Device, load_module
from tests.kernels.emulated_library import NONE, RIGHT, WRONG, library, needs_emulation
from tests.kernels.reference import attention_reference
from tests.kernels.sequences import Sequences

ROPE = 64
HEADS = 4
SIZES = HeadSizes(HEADS, 1, ROPE + 512, 512)
RULE = AttentionRule(0.125)

pytestmark = needs_emulation


def random_batch(source: random.Random) -> tuple[list[tuple[int, int, int, int]], int]:
    """Return spans (first row, rows, position of the first, first block), shuffled, and for how many the shape is."""
    only_decodes = source.random() < 0.5
    spans = []
    row = block = 0
    for _ in range(source.choice([1, 2, 7, 40, 300] if only_decodes else [1, 2, 7, 20])):
        rows = 1 if only_decodes else source.choice([1, 1, 3, 64, 700])
        before = source.choice([0, 1, 63, 64, 127, 128, 500, 5000, 40_000])
        spans.append((row, rows, before, block))
        row, block = row + rows, block + -(-(before + rows) // 64)
    source.shuffle(spans)
    return spans, len(spans) + (source.choice([0, 1, 7]) if only_decodes else 0)


def check_plan(plan: dict[str, Any], spans: list[tuple[int, int, int, int]], heads: int, count: int) -> int:
    """See that each packed row attends to each of its keys once, and is written once; return the number of items."""
    tile = 64 * plan["width"]
    assert plan["teams"] * plan["width"] <= count
    assert plan["first_item"][0] == 0
    assert sorted(plan["first_item"]) == plan["first_item"]
    items = plan["first_item"][-1]
    assert items <= plan["max_items"]
    by_row = {row: (rows, before + rows, block) for row, rows, before, block in spans}
    tiles: dict[tuple[int, int], list[int]] = {}
    for i in range(items):
        row = plan["first_token"][i] + plan["piece_first_token"]
        assert by_row[row] == (plan["rows"][i], plan["keys"][i], plan["first_block"][i])
        assert plan["first_packed"][i] % tile == 0
        assert plan["first_key"][i] % 64 == 0  # the kernel visits keys in whole tiles
        tiles.setdefault((row, plan["first_packed"][i]), []).append(i)
    expected = {(row, first) for row, rows, _, _ in spans for first in range(0, rows * heads, tile)}
    assert set(tiles) == expected
    merges = {}
    for m in range(plan["teams"] * plan["width"]):
        for k in range(plan["merge_last"][m] - plan["merge_first"][m]):
            packed = plan["merge_first"][m] + k
            assert packed not in merges
            merges[packed] = list(
                range(plan["merge_partial_first"][m] + k, plan["merge_partial_last"][m], plan["merge_stride"][m])
            )
    used: set[int] = set()
    for (row, first), parts in tiles.items():
        rows, keys, _ = by_row[row]
        size = min(tile, rows * heads - first)
        parts.sort(key=lambda i: plan["first_key"][i])
        assert plan["first_key"][parts[0]] == 0
        for left, right in itertools.pairwise(parts):
            assert plan["last_key"][left] == plan["first_key"][right]
        last_row = (first + size - 1) // heads
        assert plan["last_key"][parts[-1]] == keys - rows + last_row + 1
        partials = [plan["partial"][i] for i in parts]
        if len(parts) == 1:
            assert partials == [-1]
        for k in range(size):
            packed = (row - plan["piece_first_token"]) * heads + first + k
            if len(parts) == 1:
                assert packed not in merges
                continue
            shifted = [partial + k for partial in partials]
            assert sorted(merges.pop(packed)) == sorted(shifted)
            assert used.isdisjoint(shifted)
            used.update(shifted)
    assert merges == {}
    assert max(used, default=-1) < plan["partial_rows"]
    return int(items)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_has_every_key_of_every_row_once(seed: int) -> None:
    source = random.Random(seed)
    module = load_module("emulated")
    for _ in range(3):
        spans, padded = random_batch(source)
        heads = source.choice([1, 8, 16, 64, 128])
        count = source.choice([4, 78, 108, 132])
        plans = module.latent_plan(spans, padded, heads, count)
        rows = sum(span[1] for span in spans)
        assert sum(plan["filled_rows"] for plan in plans) == rows
        if len(plans) == 1:
            check_plan(plans[0], spans, heads, count)
        for plan in plans:  # of a prompt that is cut, a piece attends up to its own end
            begin, end = plan["piece_first_token"], plan["piece_first_token"] + plan["filled_rows"]
            cut = [
                (max(row, begin), min(row + n, end) - max(row, begin), before + max(0, begin - row), block)
                for row, n, before, block in spans
                if row < end and begin < row + n
            ]
            check_plan(plan, cut, heads, count)


def test_steps_that_decode_as_many_sequences_have_plans_of_one_shape() -> None:
    """So that a captured graph, which holds the addresses of a plan's parts, is right for all of them."""
    source = random.Random(0)
    shapes = set()
    for _ in range(30):
        count = source.randint(9, 16)
        spans = [(i, 1, source.choice([0, 200, 30_000]), 1000 * i) for i in range(count)]
        (plan,) = load_module("emulated").latent_plan(spans, 16, 128, 132)
        shapes.add(tuple(plan[name] for name in ("size", "width", "teams", "max_items", "piece_rows")))
    assert len(shapes) == 1


def test_rows_that_do_not_follow_each_other_have_no_plan() -> None:
    assert load_module("emulated").latent_plan([(0, 2, 0, 0), (3, 1, 5, 1)], 2, 16, 132) == []


def latent_batch(device: Device, lengths: list[int], block_len: int) -> Sequences:
    batch = Sequences(device, lengths, SIZES, block_len, 16, RULE)
    batch.v = [k[..., ROPE:].clone() for k in batch.k]
    return batch


def check_latents(batch: Sequences, sequence: int, out: torch.Tensor) -> None:
    """Compare with float64; weights, parts and results are rounded to bfloat16: at most 3 2^-9 sum weight |value|."""
    k, v = batch.k[sequence].bfloat16(), batch.v[sequence].bfloat16()
    both = attention_reference(batch.q[sequence], k, torch.cat([v, v.abs()], -1), RULE)[: len(out)]
    exact, magnitude = both.chunk(2, -1)
    assert ((out.double() - exact).abs() <= 1e-4 + 3 * 2**-9 * magnitude).all()


@pytest.mark.parametrize("block_len", [16, 64])
def test_a_librarys_attention_agrees_with_float64(block_len: int, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(block_len)
    with library("latents", RIGHT) as device:
        batch = latent_batch(device, [530, 65, 1], block_len)
        steps = [[(0, 0, 150), (1, 0, 40)], [(1, 40, 24), (0, 150, 377), (2, 0, 1)], [(0, 527, 1), (1, 64, 1)]]
        out = batch.run(steps)
        assert device.module.library_launches("latents") == 1 + len(steps)  # the self-check, and one a step
    for sequence in range(3):
        check_latents(batch, sequence, out[sequence])
    assert "an emulated library agrees with ours" in capfd.readouterr().err


@pytest.mark.parametrize("reason", ["it is wrong", "the user said so", "the cache is int8"])
def test_a_librarys_attention_is_left_out(
    reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if reason == "the user said so":
        monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "latents=own")
    with library("latents", WRONG if reason == "it is wrong" else RIGHT) as device:
        batch = latent_batch(device, [70], 32)
        batch.bits = 8 if reason == "the cache is int8" else 16
        steps = [[(0, 0, 66)], [(0, 66, 1)]]
        reference = batch.run(steps)
        tried = device.module.library_launches("latents")
        device.module.set_library("latents", NONE)
        batch.device = Device("emulated")
        native = batch.run(steps)
    assert torch.equal(reference[0], native[0])
    assert tried == (1 if reason == "it is wrong" else 0)
    assert ("DIFFERS from ours" in capfd.readouterr().err) == (reason == "it is wrong")
