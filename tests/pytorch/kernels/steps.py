"""A step of sequences over a paged cache, and what attention over it is in float64."""

import torch

from lmdeploy.pytorch.kernels.cache_layout import cache_channels
from tests.kernels.reference import quantize_heads, round_heads


class Cache:
    """An empty cache of one layer, whose unwritten slots hold what must not be read."""

    def __init__(
        self,
        bits: int,
        blocks: int,
        block_len: int,
        kv_heads: int,
        dims: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def values(dim: int) -> torch.Tensor:
            shape = (blocks, block_len, kv_heads, cache_channels(dim, bits))
            if bits == 16:
                return torch.full(shape, float("nan"), dtype=dtype, device=device)
            return torch.full(shape, 255, dtype=torch.uint8, device=device)

        def scales() -> torch.Tensor | None:
            if bits == 16:
                return None
            return torch.full((blocks, block_len, kv_heads, 2), float("nan"), dtype=torch.float16, device=device)

        self.bits = bits
        self.k, self.v = map(values, dims)
        self.k_scales, self.v_scales = scales(), scales()


class Step:
    """Spans of rows, the last of their contexts, with keys and values of all positions.

    ``keys``, ``values``: for each span ``[kv_len, kv_heads, dim]``.
    """

    def __init__(
        self,
        random: torch.Generator,
        spans: list[tuple[int, int]],
        *,
        kv_heads: int,
        dims: tuple[int, int],
        block_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.q_lens, self.kv_lens = [list(x) for x in zip(*spans, strict=True)]
        self.q_seqlens, self.kv_seqlens = (torch.tensor(x, device=device) for x in (self.q_lens, self.kv_lens))
        self.q_start_loc = self.q_seqlens.cumsum(0) - self.q_seqlens
        widest = max(-(-kv // block_len) for kv in self.kv_lens)
        # Blocks in no order, each used once; block 0 is nobody's.
        order = torch.randperm(len(spans) * widest, generator=random) + 1
        self.block_offsets = order.view(len(spans), widest).to(device)
        self.keys, self.values = (
            [torch.randn(kv, kv_heads, dim, generator=random).to(device, dtype) for kv in self.kv_lens] for dim in dims
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
                quantized, scale, zero = quantize_heads(x.float(), cache.bits)
                scales.flatten(0, 1)[slots] = torch.cat([scale, zero], -1).half()
                quantized = quantized.to(torch.uint8)
                if cache.bits == 4:
                    low, high = quantized.chunk(2, -1)
                    quantized = low | high << 4
                stored.flatten(0, 1)[slots] = quantized

    def cached(self, span: int, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the float64 keys and values that the cache of this many bits stands for."""
        pair = self.keys[span].cpu(), self.values[span].cpu()
        keys, values = (x.double() if bits == 16 else round_heads(x.float(), bits) for x in pair)
        return keys, values
