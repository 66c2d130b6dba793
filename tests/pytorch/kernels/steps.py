"""A step of sequences over a paged cache, and what attention over it is in float64."""

from dataclasses import dataclass

import torch

from lmdeploy.pytorch.kernels.cache_layout import cache_channels
from tests.kernels.reference import round_heads


@dataclass
class Cache:
    """An empty cache of one layer, whose unwritten slots hold what must not be read."""

    bits: int
    k: torch.Tensor
    v: torch.Tensor
    k_scales: torch.Tensor | None
    v_scales: torch.Tensor | None

    @classmethod
    def make(
        cls,
        bits: int,
        blocks: int,
        block_len: int,
        kv_heads: int,
        dims: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> "Cache":
        def values(dim: int) -> torch.Tensor:
            shape = (blocks, block_len, kv_heads, cache_channels(dim, bits))
            if bits == 16:
                return torch.full(shape, float("nan"), dtype=dtype, device=device)
            return torch.full(shape, 255, dtype=torch.uint8, device=device)

        def scales() -> torch.Tensor | None:
            if bits == 16:
                return None
            return torch.full((blocks, block_len, kv_heads, 2), float("nan"), dtype=torch.float16, device=device)

        return cls(bits, values(dims[0]), values(dims[1]), scales(), scales())


@dataclass
class Step:
    """Spans of rows, the last of their contexts, with keys and values of all positions."""

    q_lens: list[int]
    kv_lens: list[int]
    keys: list[torch.Tensor]  # a span: [kv_len, kv_heads, k_dim]
    values: list[torch.Tensor]
    q_start_loc: torch.Tensor
    q_seqlens: torch.Tensor
    kv_seqlens: torch.Tensor
    block_offsets: torch.Tensor

    @classmethod
    def make(
        cls,
        random: torch.Generator,
        spans: list[tuple[int, int]],
        *,
        kv_heads: int,
        dims: tuple[int, int],
        block_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "Step":
        q_lens, kv_lens = [list(x) for x in zip(*spans, strict=True)]
        widest = max(-(-kv // block_len) for kv in kv_lens)
        # Blocks in no order, each used once; block 0 is nobody's.
        order = torch.randperm(len(spans) * widest, generator=random) + 1
        starts = torch.tensor(q_lens).cumsum(0) - torch.tensor(q_lens)
        return cls(
            q_lens,
            kv_lens,
            [torch.randn(kv, kv_heads, dims[0], generator=random).to(device, dtype) for kv in kv_lens],
            [torch.randn(kv, kv_heads, dims[1], generator=random).to(device, dtype) for kv in kv_lens],
            starts.to(device),
            torch.tensor(q_lens).to(device),
            torch.tensor(kv_lens).to(device),
            order.view(len(spans), widest).to(device),
        )

    @property
    def blocks(self) -> int:
        return self.block_offsets.numel() + 1

    def fill(self, cache: Cache) -> None:
        """Write the whole contexts into the cache, as its layout is described."""
        block_len = cache.k.shape[1]
        for span, length in enumerate(self.kv_lens):
            position = torch.arange(length, device=cache.k.device)
            slots = self.block_offsets[span, position // block_len] * block_len + position % block_len
            for x, stored, scales in (
                (self.keys[span], cache.k, cache.k_scales),
                (self.values[span], cache.v, cache.v_scales),
            ):
                if scales is None:
                    stored.flatten(0, 1)[slots] = x
                    continue
                quantized, scale_zero = round_to_cache(x, cache.bits)
                scales.flatten(0, 1)[slots] = scale_zero
                if cache.bits == 4:
                    low, high = quantized.chunk(2, -1)
                    quantized = low | high << 4
                stored.flatten(0, 1)[slots] = quantized

    def cached(self, span: int, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the float64 keys and values that the cache of this many bits stands for."""
        pair = self.keys[span].cpu(), self.values[span].cpu()
        keys, values = (x.double() if bits == 16 else round_heads(x.float(), bits) for x in pair)
        return keys, values


def round_to_cache(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 codes of heads ``[rows, heads, dim]`` and ``[rows, heads, 2]`` (scale, zero) in float16."""
    x = x.float()
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    largest = 2**bits - 1
    scale = ((high - low) / largest).half().float()
    zero = (-low * (1 / scale)).round().clamp(0, largest)
    quantized = (x * (1 / scale) + zero).round().clamp(0, largest)
    return quantized.to(torch.uint8), torch.cat([scale, zero], -1).half()
