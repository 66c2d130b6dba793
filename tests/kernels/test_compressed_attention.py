"""Attention to compressed keys against sums in float64, with NaN in all that a row must not read."""

import torch

from tests.kernels.arguments import HeadSizes
from tests.kernels.device import Cache, Device
from tests.kernels.test_sparse_attention import highest

TOKENS, BLOCK, RATIO, DIM, HEADS, WINDOW, TOP_K = 203, 16, 4, 18, 3, 10, 5
KEYS = TOKENS // RATIO


class Rows(Cache):
    """Rows of a sequence that stand for some tokens each, in the second layer of pages that are in no order."""

    def __init__(self, cpu: Device, order: torch.Tensor, width: int, tokens: int, first_row: int) -> None:
        block_len = BLOCK // tokens + first_row
        super().__init__(cpu, len(order), HeadSizes(1, 1, width, 0), block_len, 32, layers=2)
        self.fields = (self.params(), BLOCK, tokens, first_row)
        last = torch.arange(tokens - 1, TOKENS, tokens)  # of each row's tokens
        self._places = order[last // BLOCK], 1, first_row + last % BLOCK // tokens
        self._numbers = self.pool.view(torch.float32).unflatten(1, (2, block_len, width))

    @property
    def content(self) -> torch.Tensor:
        return self._numbers[self._places]

    def keep(self, rows: list[int]) -> None:
        """Make all but these rows NaN."""
        content = torch.full_like(self.content, torch.nan)
        content[rows] = self.content[rows]
        self._numbers[self._places] = content


def compressed(rows: torch.Tensor, biases: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Return the keys of rows [tokens, key, 2 series of values, 2 of gates], by the definition."""
    keys = []
    parts = rows.double().unflatten(1, (5, DIM))
    for end in range(RATIO, TOKENS + 1, RATIO):
        own, before = parts[end - RATIO : end], parts[max(0, end - 2 * RATIO) : end - RATIO]
        gates = torch.cat([own[:, 4] + biases[:, 1], before[:, 3] + biases[: len(before), 0]])
        key = (gates.softmax(0) * torch.cat([own[:, 2], before[:, 1]])).sum(0)
        keys.append(key * norm / (key.square().mean() + 1e-6).sqrt())
    return torch.stack(keys)


def test_compressed_keys_are_chosen_and_attended_to_as_defined(cpu: Device) -> None:
    torch.manual_seed(7)
    order = torch.randperm(-(-TOKENS // BLOCK))
    last, keys = Rows(cpu, order, 5 * DIM, 1, 0), Rows(cpu, order, DIM, RATIO, 3)
    rows, biases, norm = torch.randn(TOKENS, 5 * DIM), torch.randn(RATIO, 2, DIM), torch.randn(DIM)
    cpu.native.set_spans([(0, TOKENS, 0, order.tolist())], BLOCK)
    cpu.native.write_cache_rows(last.fields, 0, rows)
    table = (None, None, 0, False)
    normed = (0, 1e-6, norm, None)
    cpu.native.compress_keys(last.fields, DIM, keys.fields, 0, RATIO, 2, biases, normed, DIM, table, 0)
    expected = compressed(rows, biases, norm)
    assert (keys.content - expected).abs().max() < 1e-5

    q, weights = torch.randn(TOKENS, HEADS, DIM), torch.randn(TOKENS, HEADS)
    chosen = torch.full((TOKENS, TOP_K), -1, dtype=torch.int32)
    cpu.native.choose_compressed_keys(keys.fields, 0, RATIO, TOP_K, q, weights, chosen, False)
    best = highest(weights[-1].double() @ (q[-1].double() @ expected.T).relu(), TOP_K)
    assert torch.equal(chosen[-1].long(), best)
    assert (chosen[: TOP_K * RATIO] == -1).all()  # these rows see no more keys than they may choose

    keys.keep(best.tolist())
    last.keep(list(range(TOKENS - WINDOW, TOKENS)))
    sinks, out = torch.randn(HEADS), torch.full((TOKENS, HEADS, DIM), torch.nan)
    cpu.native.set_spans([(TOKENS - 1, 1, TOKENS - 1, order.tolist())], BLOCK)
    cpu.native.compressed_attention(last.fields, WINDOW, keys.fields, TOP_K, chosen, sinks, q, out)
    seen = torch.cat([expected[best], rows[-WINDOW:, :DIM].double()])
    scores = torch.cat([q[-1].double() @ seen.T, sinks[:, None].double()], 1)
    assert (out[-1] - scores.softmax(-1)[:, :-1] @ seen).abs().max() < 1e-4
