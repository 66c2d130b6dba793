"""Sequences that run through a paged cache in steps, and what they must come to."""

import torch

from tests.kernels.arguments import AttentionRule, HeadSizes, Span
from tests.kernels.device import BF16_PRODUCTS, BF16_TILES, Attention, Device
from tests.kernels.reference import attention_reference, round_heads

# (sequence, first position, tokens) of one step.
Chunk = tuple[int, int, int]

# Of CUDA's bound: sums in float32, and 2^x within 2^-22, of scores up to about 20, whose own error is 20 2^-24 of a
# weight; with caps and slopes scores are larger.
SUMS = {True: 4e-5, False: 2e-5}


class Sequences:
    """Random queries, keys and values of some sequences on a device, and the blocks each lives in, shuffled.

    Queries are bfloat16 numbers: with a scale that is a power of two the scaled ones are so too, and rounding them
    changes nothing.
    """

    def __init__(
        self, device: Device, lengths: list[int], sizes: HeadSizes, block_len: int, bits: int, rule: AttentionRule
    ) -> None:
        self.device, self.sizes, self.block_len, self.bits, self.rule = device, sizes, block_len, bits, rule
        self.q = [torch.randn(n, sizes.num_heads, sizes.key_dim).bfloat16().float() for n in lengths]
        self.k = [torch.randn(n, sizes.num_kv_heads, sizes.key_dim) for n in lengths]
        self.v = [torch.randn(n, sizes.num_kv_heads, sizes.value_dim) for n in lengths]
        counts = [-(-n // block_len) for n in lengths]
        free = torch.randperm(sum(counts)).tolist()
        self.blocks = [[free.pop() for _ in range(count)] for count in counts]

    def new_cache(self) -> Attention:
        """Return attention over its own cache."""
        blocks = sum(map(len, self.blocks))
        return Attention(self.device, blocks, self.sizes, self.block_len, self.bits, self.rule)

    def run(self, steps: list[list[Chunk]]) -> dict[int, torch.Tensor]:
        """Run steps through one new cache; return each sequence's rows."""
        attention = self.new_cache()
        pieces: dict[int, list[torch.Tensor]] = {}
        for step in steps:
            spans: list[Span] = []
            first = 0
            for sequence, start, count in step:
                spans.append((first, count, start, self.blocks[sequence]))
                first += count
            q, k, v = (torch.cat([x[s][p : p + n] for s, p, n in step]) for x in (self.q, self.k, self.v))
            out = attention(q, k, v, spans)
            for (sequence, _, _), part in zip(step, out.split([n for _, _, n in step]), strict=True):
                pieces.setdefault(sequence, []).append(part)
        return {sequence: torch.cat(parts) for sequence, parts in pieces.items()}

    def check(self, sequence: int, out: torch.Tensor) -> None:
        """Compare a sequence's first rows with float64 over keys and values rounded as the cache rounds them.

        Where matrix instructions multiply (CUDA, tiles, and bfloat16 products over a bfloat16 cache), softmax weights
        are rounded to bfloat16, so that a result is off by at most 2^-8 sum weight |value|. A GPU's library for
        prompts rounds results to bfloat16 too, which adds 2^-9 of them.
        """
        q = self.q[sequence]
        k, v = (cached(x[sequence], self.bits) for x in (self.k, self.v))
        both = attention_reference(q, k, torch.cat([v, v.abs()], -1), self.rule)[: len(out)]
        exact, magnitude = both.chunk(2, -1)
        on_tiles = self.device.is_cuda or self.device.isa in BF16_TILES
        is_quantized = self.bits < 32 if on_tiles else self.bits == 16 and self.device.isa in BF16_PRODUCTS
        rounding = 2**-8 + (2**-9 if self.device.name == "gpu" and self.bits == 16 else 0)
        bound = SUMS[self.device.is_cuda] * (1 + magnitude) + (rounding * magnitude if is_quantized else 0)
        error = (out.double() - exact).abs()
        assert (error <= bound).all(), f"{(error / bound).max():.2f} of the bound"


def cached(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the cached keys or values ``[rows, heads, dim]`` at ``bits`` bits."""
    if bits == 32:
        return x
    return x.bfloat16() if bits == 16 else round_heads(x, bits)
