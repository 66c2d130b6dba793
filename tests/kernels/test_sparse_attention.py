"""Sparse attention against sums in float64, with NaN in all that a row must not read."""

import pytest
import torch

from tests.kernels.arguments import HeadSizes
from tests.kernels.device import CACHE_BITS, Cache, Device
from tests.kernels.reference import rotate_part

HEADS, KEY_DIM, VALUE_DIM = 6, 24, 16
INDEX_HEADS, INDEX_DIM = 11, 10
BLOCK_LEN = 16
FREQUENCIES = torch.tensor([1.0, 0.3, 0.02])
# Numbers in a cache of so many bits are rounded; results are compared with those of what was written.
TOLERANCES = {32: 1e-5, 16: 0.03, 8: 0.08, 4: 0.9}
Tokens = list[list[torch.Tensor]]  # of each row, for each key/value head


class Sequence(Cache):
    """One sequence in blocks that are in no order."""

    def __init__(self, cpu: Device, context: int, sizes: HeadSizes, bits: int) -> None:
        self.context, self.order = context, torch.randperm(-(-context // BLOCK_LEN))
        super().__init__(cpu, len(self.order), sizes, BLOCK_LEN, bits, layers=2)

    def run_last(self, rows: int, before: int = 0) -> None:
        """Have a step of the last rows but ``before``."""
        self.native.set_spans([(0, rows, self.context - before - rows, self.order.tolist())], BLOCK_LEN)

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.write(keys, values, [(0, self.context, 0, self.order.tolist())])


class Index(Sequence):
    """The index keys of a sequence, which are rounded to its type."""

    def __init__(self, cpu: Device, context: int, bits: int) -> None:
        self.bits = 32 if bits == 32 else 16
        super().__init__(cpu, context, HeadSizes(1, 1, INDEX_DIM, 0), self.bits)
        self.keys = torch.randn(context, INDEX_DIM)
        if self.bits == 16:
            self.keys = self.keys.bfloat16().float()

    def fill_keys(self) -> None:
        self.fill(self.keys[:, None], torch.zeros(self.context, 1, 0))


def highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return where the highest scores are, ascending; of equal ones the first."""
    return scores.sort(descending=True, stable=True).indices[:count].sort().values


def whole_blocks(scores: torch.Tensor, count: int, block: int, kv_len: int) -> torch.Tensor:
    """Return the tokens of the blocks of the highest scores, and all after the last block."""
    tokens = highest(scores, count)[:, None] * block + torch.arange(block)
    return torch.cat([tokens.flatten(), torch.arange(len(scores) * block, kv_len)])


def unchosen(*shape: int) -> torch.Tensor:
    return torch.full(shape, -1, dtype=torch.int32)


def check_attention(cpu: Device, bits: int, context: int, seen: Tokens, chosen: torch.Tensor, block: int = 1) -> None:
    """Check attention of rows that see these tokens; what is no row's is NaN."""
    rows, kv_heads = len(seen), len(seen[0])
    is_seen = torch.zeros(context, 1, 1, dtype=torch.bool)
    is_seen[torch.cat([tokens for of_row in seen for tokens in of_row])] = True
    keys, values = torch.randn(context, kv_heads, KEY_DIM), torch.randn(context, kv_heads, VALUE_DIM)
    cache = Sequence(cpu, context, HeadSizes(HEADS, kv_heads, KEY_DIM, VALUE_DIM), bits)
    cache.fill(keys.where(is_seen, torch.nan), values.where(is_seen, torch.nan))
    q, out = 0.2 * torch.randn(rows, HEADS, KEY_DIM), torch.full((rows, HEADS, VALUE_DIM), torch.nan)
    cache.run_last(rows)
    cpu.native.sparse_attention(cache.params(), chosen.shape[-1], chosen, q, out, block, chosen.ndim == 3)
    expected = [
        (queries @ keys[tokens, head].double().T).softmax(-1) @ values[tokens, head].double()
        for row, of_row in zip(q.double(), seen, strict=True)
        for head, (queries, tokens) in enumerate(zip(row.chunk(kv_heads), of_row, strict=True))
    ]
    assert (out.flatten(0, 1) - torch.cat(expected)).abs().max() < TOLERANCES[bits]


def check_tokens(cpu: Device, bits: int, context: int, rows: int, top_k: int) -> None:
    torch.manual_seed(7)
    index = Index(cpu, context, bits)
    index.fill_keys()
    q, weights = torch.randn(rows, INDEX_HEADS, INDEX_DIM), torch.randn(rows, INDEX_HEADS)
    chosen = unchosen(rows, top_k)
    index.run_last(rows)
    cpu.native.choose_keys(index.params(), top_k, q, weights, chosen)
    seen = []
    for row, kv_len in enumerate(range(context - rows + 1, context + 1)):
        products = (q[row].double() @ index.keys[:kv_len].double().T).relu()
        seen.append([highest(weights[row].double() @ products, top_k)])
        assert kv_len <= top_k or torch.equal(chosen[row].long(), seen[-1][0])
    check_attention(cpu, bits, context, seen, chosen)


def block_keys(keys: torch.Tensor, norm: torch.Tensor, block: int) -> torch.Tensor:
    """Return the index keys of whole blocks, of those of tokens, in float64."""
    blocks = len(keys) // block
    means = keys[: blocks * block].double().unflatten(0, (blocks, block)).mean(1)
    normed = means * norm.double() / (means.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return rotate_part(normed[:, None], torch.arange(blocks)[:, None] * block * FREQUENCIES.double(), False)[:, 0]


def check_blocks(cpu: Device, bits: int, context: int, rows: int, budget: int, block: int) -> None:
    torch.manual_seed(11)
    kv_heads, top_k, first = 2, budget + block - 1, context - rows
    index, norm = Index(cpu, context, bits), torch.randn(INDEX_DIM)
    cache = (index.params(), BLOCK_LEN, 1, 0)  # a block's key lies in the place of its last token's
    for begin, end in ((0, first // 2), (first // 2, first), (first, context)):  # cuts within blocks
        angles = (torch.arange(begin, end) + 1 - block)[:, None] * FREQUENCIES.double()
        table = (angles.cos().float(), angles.sin().float(), len(FREQUENCIES), False)
        index.run_last(end - begin, before=context - end)
        if end > begin:
            cpu.native.write_cache_rows(cache, 0, index.keys[begin:end].contiguous())
            normed = (0, 1e-6, norm, None)
            cpu.native.compress_keys(cache, 0, cache, 0, block, 1, None, normed, INDEX_DIM, table, 0)
    # Of the index keys, those of tokens are not read by a choice.
    tokens = torch.arange(context)
    tokens = tokens[(tokens + 1) % block != 0]
    index.pool.unflatten(1, (2, BLOCK_LEN, -1))[index.order[tokens // BLOCK_LEN], 1, tokens % BLOCK_LEN] = 0xFF
    q, chosen = torch.randn(rows, INDEX_HEADS, INDEX_DIM), unchosen(rows, top_k)
    index.run_last(rows)
    cpu.native.choose_compressed_keys(cache, 0, block, budget // block, q, None, chosen, True)
    scores = (q.double() @ block_keys(index.keys, norm, block).T).relu().sum(1)
    seen = []
    for row, kv_len in enumerate(range(first + 1, context + 1)):
        tokens = whole_blocks(scores[row, : kv_len // block], budget // block, block, kv_len)
        if kv_len > top_k:
            found = chosen[row, : len(tokens)].long()
            # Near the threshold, keys that were rounded may be chosen in place of others.
            assert index.bits == 16 or torch.equal(found, tokens)
            tokens = found
        seen.append([tokens] * kv_heads)
    check_attention(cpu, bits, context, seen, chosen, block)


def check_best_blocks(cpu: Device, bits: int, context: int, rows: int, budget: int, block: int) -> None:
    """The same where each key/value head chooses ``budget`` / ``block`` blocks by their best token."""
    torch.manual_seed(13)
    kv_heads, count = 2, budget // block
    index = Index(cpu, context, bits)
    index.fill_keys()
    q, chosen = torch.randn(rows, kv_heads, INDEX_DIM), unchosen(rows, kv_heads, budget)
    index.run_last(rows)
    cpu.native.choose_best_blocks(index.params(), count, block, q, chosen)
    seen: Tokens = []
    for row, kv_len in enumerate(range(context - rows + 1, context + 1)):
        own = (kv_len - 1) // block
        products = q[row].double() @ index.keys[: own * block].double().T
        best = products.view(kv_heads, own, block).amax(-1) if own else products
        seen.append([whole_blocks(of_head, count - 1, block, kv_len) for of_head in best])
        for head, tokens in enumerate(seen[-1]):
            assert kv_len <= budget or torch.equal(chosen[row, head, : len(tokens)].long(), tokens)
    check_attention(cpu, bits, context, seen, chosen, block)


@pytest.mark.parametrize("bits", CACHE_BITS)
def test_rows_attend_to_the_tokens_of_the_highest_scores_and_read_no_other(cpu: Device, bits: int) -> None:
    check_tokens(cpu, bits, 700, 1, 33)
    check_tokens(cpu, bits, 700, 3, 33)
    check_tokens(cpu, bits, 90, 80, 32)  # some rows see fewer tokens than they may choose
    check_tokens(cpu, bits, 40, 40, 40)  # all do


@pytest.mark.parametrize("bits", CACHE_BITS)
def test_rows_attend_to_the_blocks_of_the_highest_scores_and_read_no_other(cpu: Device, bits: int) -> None:
    check_blocks(cpu, bits, 700, 1, 32, 4)
    check_blocks(cpu, bits, 701, 7, 30, 5)  # blocks that pages of the cache cut
    check_blocks(cpu, bits, 90, 80, 40, 20)  # longer than pages; some rows see fewer tokens than they may choose
    check_blocks(cpu, bits, 40, 40, 40, 8)  # all do


@pytest.mark.parametrize("bits", CACHE_BITS)
def test_heads_attend_to_the_blocks_of_their_best_tokens_and_read_no_other(cpu: Device, bits: int) -> None:
    check_best_blocks(cpu, bits, 700, 1, 32, 4)
    check_best_blocks(cpu, bits, 701, 7, 30, 5)
    check_best_blocks(cpu, bits, 90, 80, 40, 20)
    check_best_blocks(cpu, bits, 90, 80, 20, 20)  # their own alone


@pytest.mark.parametrize("bits", [32, 16])
def test_a_row_of_a_long_context_reads_as_many_tokens_as_it_chooses(cpu: Device, bits: int) -> None:
    check_tokens(cpu, bits, 32000, 2, 2048)
    check_blocks(cpu, bits, 32003, 2, 2048, 16)


def test_a_choice_among_equal_scores_takes_the_earlier_tokens(cpu: Device) -> None:
    index = Index(cpu, 100, 32)
    index.keys.fill_(1)
    index.keys[[60, 61]] = 2
    index.fill_keys()
    index.run_last(1)
    chosen = unchosen(20)
    cpu.native.choose_keys(index.params(), 20, torch.ones(1, 1, INDEX_DIM), torch.ones(1), chosen)
    assert chosen.tolist() == [*range(18), 60, 61]


def test_a_row_attends_alone_as_it_does_among_others(cpu: Device) -> None:
    cache = Sequence(cpu, 600, HeadSizes(HEADS, 1, KEY_DIM, VALUE_DIM), 16)
    cache.fill(torch.randn(600, 1, KEY_DIM), torch.randn(600, 1, VALUE_DIM))
    chosen = (7 * torch.arange(9)[:, None] + torch.arange(530)).int()
    q = torch.randn(9, HEADS, KEY_DIM)

    def run(row: int, rows: int) -> torch.Tensor:
        out = torch.full((rows, HEADS, VALUE_DIM), torch.nan)
        part = slice(row, row + rows)
        cache.run_last(rows, before=9 - row - rows)
        cpu.native.sparse_attention(cache.params(), 530, chosen[part], q[part], out, 1, False)
        return out

    assert torch.equal(run(0, 9), torch.cat([run(row, 1) for row in range(9)]))
