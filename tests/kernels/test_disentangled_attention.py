"""Disentangled attention against sums in float64."""

import torch

from tests.kernels.arguments import HeadSizes
from tests.kernels.device import CACHE_BITS, Cache, Device

HEADS, DIM, REACH, SCALE = 3, 20, 40, 0.1


def test_scores_have_the_products_of_distances_too(cpu: Device) -> None:
    torch.manual_seed(5)
    # One each up to 8, then in fours.
    numbers = [d if abs(d) <= 8 else int(d / 4) + (6 if d > 0 else -6) for d in range(-REACH, REACH + 1)]
    buckets = 16 + torch.tensor(numbers)
    spans = [(0, 130, 0, [0]), (130, 1, 0, [0]), (131, 49, 0, [0])]
    q, k, v = torch.randn(180, 3, HEADS, DIM).unbind(1)
    queries, keys = torch.randn(2, HEADS, int(buckets[-1]) + 1, DIM)
    out = torch.full((180, HEADS, DIM), torch.nan)
    cpu.native.set_spans(spans, 16)
    params = Cache(cpu, 0, HeadSizes(HEADS, HEADS, DIM, DIM), 16, CACHE_BITS[0]).params()
    cpu.native.disentangled_attention(params, SCALE, q, k, v, queries, keys, buckets.int(), REACH, out)
    for first, rows, _, _ in spans:
        mine = slice(first, first + rows)
        distances = (torch.arange(rows)[:, None] - torch.arange(rows)).clamp(-REACH, REACH)
        of_pair = buckets[REACH + distances]
        a, b, values = (x[mine].double().transpose(0, 1) for x in (q, k, v))
        scores = a @ b.transpose(1, 2)
        scores += (a[:, :, None] * keys.double()[:, of_pair]).sum(-1)
        scores += (b[:, None] * queries.double()[:, of_pair]).sum(-1)
        expected = ((SCALE * scores).softmax(-1) @ values).transpose(0, 1)
        assert (out[mine] - expected).abs().max() < 1e-5
