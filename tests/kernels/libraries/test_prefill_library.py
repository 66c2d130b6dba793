"""A library's attention of prompts: its plan, what surrounds its kernel, and that only a right one is used.

The kernel itself is emulated here: plain loops that follow the plan as FlashInfer's kernels do.
"""

import itertools
import random

import pytest
import torch

from tests.kernels.arguments import AttentionRule, HeadSizes
from tests.kernels.device import Device, load_module
from tests.kernels.emulated_library import NONE, RIGHT, WRONG, library, needs_emulation
from tests.kernels.reference import attention_reference
from tests.kernels.sequences import Chunk, Sequences

HEADS, KV_HEADS = 4, 2
UNMODIFIED = AttentionRule(0.125)
TRIAL = 1

pytestmark = needs_emulation


def random_batch(source: random.Random) -> list[tuple[int, int, int, int]]:
    """Return spans (first row, rows, position of the first, first block), shuffled, with rows of others between."""
    spans = []
    row = block = 0
    for _ in range(source.choice([1, 2, 7, 40])):
        rows = source.choice([2, 63, 128, 129, 384, 3000])
        before = source.choice([0, 1, 95, 500, 40_000])
        spans.append((row, rows, before, block))
        row, block = row + rows + source.choice([0, 0, 3]), block + -(-(before + rows) // 64)
    source.shuffle(spans)
    return spans


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_has_every_tile_of_every_head_once(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(3):
        spans, heads = random_batch(source), source.choice([1, 8, 28])
        tile_rows, count = source.choice([128, 192]), source.choice([4, 78, 132])
        plan = load_module("emulated").prefill_plan(spans, heads, tile_rows, count)
        by_row = {row: (rows, before + rows, block) for row, rows, before, block in spans}
        expected = {
            (row, tile, head)
            for row, (rows, _, _) in by_row.items()
            for tile in range(-(-rows // tile_rows))
            for head in range(heads)
        }
        items = list(zip(plan["first_token"], plan["tile"], plan["head"], strict=True))
        assert len(items) == len(expected)
        assert set(items) == expected
        costs = []
        for i, (row, tile, _) in enumerate(items):
            rows, keys, block = by_row[row]
            assert (plan["rows"][i], plan["keys"][i], plan["first_block"][i]) == (rows, keys, block)
            costs.append(min(keys, keys - rows + (tile + 1) * tile_rows) + 128)
        begins = plan["first_item"]
        assert (begins[0], begins[-1], len(begins)) == (0, len(items), count + 1)
        loads = [sum(costs[a:b]) for a, b in itertools.pairwise(begins)]
        assert max(loads) <= sum(costs) / count + max(costs)


def prompts(
    device: Device, lengths: list[int], dim: int, block_len: int, rule: AttentionRule = UNMODIFIED
) -> Sequences:
    return Sequences(device, lengths, HeadSizes(HEADS, KV_HEADS, dim, dim), block_len, 16, rule)


@pytest.mark.parametrize(("dim", "block_len"), [(64, 16), (128, 64)])
def test_a_librarys_attention_agrees_with_float64(dim: int, block_len: int, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(dim)
    steps: list[list[Chunk]] = [
        [(1, 0, 64), (0, 0, 140)],
        [(1, 64, 1), (0, 140, 110), (2, 0, 70)],  # a row that decodes is ours
        [(0, 250, 4), (2, 70, 1)],  # few rows are ours
        [(1, 65, 70), (2, 71, 1), (0, 254, 90)],  # what is the library's has a row of ours in between
    ]
    with library("prompts", RIGHT) as device:
        batch = prompts(device, [344, 135, 72], dim, block_len)
        out = batch.run(steps)
        assert device.module.library_launches("prompts") == TRIAL + 3
    assert "attention of prompts by an emulated library agrees with ours" in capfd.readouterr().err
    for sequence, rows in out.items():
        k, v = batch.k[sequence].bfloat16(), batch.v[sequence].bfloat16()
        both = attention_reference(batch.q[sequence], k, torch.cat([v, v.abs()], -1), UNMODIFIED)[: len(rows)]
        exact, magnitude = both.chunk(2, -1)
        # Weights and results are rounded to bfloat16.
        assert ((rows.double() - exact).abs() <= 1e-4 + 2 * 2**-8 * magnitude).all()


LEFT_OUT = ["it is wrong", "the user said so", "the window hides keys", "there are sinks", "no kernel has such heads"]


@pytest.mark.parametrize("reason", LEFT_OUT)
def test_a_librarys_attention_is_left_out(
    reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if reason == "the user said so":
        monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "prompts=own")
    torch.manual_seed(1)
    rule = {
        "the window hides keys": AttentionRule(0.125, window=70),
        "there are sinks": AttentionRule(0.125, sinks=torch.randn(HEADS)),
    }.get(reason, UNMODIFIED)
    with library("prompts", WRONG if reason == "it is wrong" else RIGHT) as device:
        batch = prompts(device, [75], 32 if reason == "no kernel has such heads" else 64, 32, rule)
        reference = batch.run([[(0, 0, 75)]])
        tried = device.module.library_launches("prompts")
        device.module.set_library("prompts", NONE)
        batch.device = Device("emulated")
        native = batch.run([[(0, 0, 75)]])
    assert torch.equal(reference[0], native[0])
    assert tried == (TRIAL if reason == "it is wrong" else 0)
    assert ("DIFFERS from ours" in capfd.readouterr().err) == (reason == "it is wrong")


def test_a_window_that_hides_no_key_changes_nothing() -> None:
    torch.manual_seed(2)
    with library("prompts", RIGHT) as device:
        batch = prompts(device, [75], 64, 32, AttentionRule(0.125, window=75))
        batch.run([[(0, 0, 75)]])
        assert device.module.library_launches("prompts") == TRIAL + 1


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_queries_rounded_while_they_are_rotated_come_to_the_same_bits(*, is_interleaved: bool) -> None:
    torch.manual_seed(3)
    with library("prompts", RIGHT) as device:
        batch = prompts(device, [141, 72], 64, 32)
        attention, rotated_attention = batch.new_cache(), batch.new_cache()
        for step in ([(0, 0, 140)], [(0, 140, 1), (1, 0, 72)]):
            q, k, v = (torch.cat([x[s][p : p + n] for s, p, n in step]) for x in (batch.q, batch.k, batch.v))
            ends = list(itertools.accumulate((n for _, _, n in step), initial=0))
            spans = [(end, n, p, batch.blocks[s]) for end, (s, p, n) in zip(ends, step, strict=False)]
            angles, factors = torch.rand(len(q), 24) * 6, torch.rand(len(q)) + 0.5
            cos, sin = angles.cos(), angles.sin()
            turned_q = device.rope(q, cos, sin, factors, is_interleaved=is_interleaved)
            turned_k = device.rope(k, cos, sin, is_interleaved=is_interleaved)
            expected = attention(turned_q, turned_k, v, spans)
            counts = [device.module.calls_of("cudaLaunchKernel")]
            assert torch.equal(attention(turned_q, turned_k, v, spans), expected)
            counts.append(device.module.calls_of("cudaLaunchKernel"))
            assert torch.equal(rotated_attention(q, k, v, spans, (cos, sin, factors, is_interleaved)), expected)
            counts.append(device.module.calls_of("cudaLaunchKernel"))
            # Those rotated before are rounded in a launch of its own.
            assert counts[2] - counts[1] == counts[1] - counts[0] - 1
