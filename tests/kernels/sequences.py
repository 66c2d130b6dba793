"""Sequences that run through a paged cache in steps, and what they must come to."""

from collections.abc import Callable

import torch

from lmdeploy.turbomind.ops import AttentionRule, HeadSizes, PagedAttention, Span
from tests.kernels.reference import attention_reference

# (sequence, first position, tokens) of one step.
Chunk = tuple[int, int, int]
# Takes what ``PagedAttention`` takes and returns what can be called as it can.
MakeAttention = Callable[..., Callable[[torch.Tensor, torch.Tensor, torch.Tensor, list[Span]], torch.Tensor]]


class Sequences:
    """Random queries, keys and values of some sequences, and the blocks each lives in, shuffled."""

    def __init__(
        self,
        lengths: list[int],
        sizes: HeadSizes,
        block_len: int,
        bits: int,
        rule: AttentionRule,
        make: MakeAttention = PagedAttention,
    ) -> None:
        self.sizes, self.block_len, self.bits, self.rule, self.make = sizes, block_len, bits, rule, make
        self.q = [torch.randn(n, sizes.num_heads, sizes.key_dim) for n in lengths]
        self.k = [torch.randn(n, sizes.num_kv_heads, sizes.key_dim) for n in lengths]
        self.v = [torch.randn(n, sizes.num_kv_heads, sizes.value_dim) for n in lengths]
        counts = [-(-n // block_len) for n in lengths]
        free = torch.randperm(sum(counts)).tolist()
        self.blocks = [[free.pop() for _ in range(count)] for count in counts]

    def exact(self, sequence: int) -> torch.Tensor:
        """Return the float64 result for a sequence, over keys and values rounded as the cache rounds them."""
        bits = 64 if self.bits == 32 else self.bits
        return attention_reference(self.q[sequence], self.k[sequence], self.v[sequence], self.rule, bits)

    def run(self, steps: list[list[Chunk]]) -> dict[int, torch.Tensor]:
        """Run steps through one new cache; return each sequence's rows."""
        attend = self.make(
            sum(map(len, self.blocks)),
            self.sizes,
            self.block_len,
            self.bits,
            self.rule,
        )
        pieces: dict[int, list[torch.Tensor]] = {}
        for step in steps:
            spans: list[Span] = []
            first = 0
            for sequence, start, count in step:
                spans.append((first, count, start, self.blocks[sequence]))
                first += count
            q, k, v = (torch.cat([x[s][p : p + n] for s, p, n in step]) for x in (self.q, self.k, self.v))
            out = attend(q, k, v, spans)
            for (sequence, _, _), part in zip(step, out.split([n for _, _, n in step]), strict=True):
                pieces.setdefault(sequence, []).append(part)
        return {sequence: torch.cat(parts) for sequence, parts in pieces.items()}
