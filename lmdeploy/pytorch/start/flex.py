"""Attention over the paged cache by PyTorch's flex attention: the fallback where native kernels fail their check.

Keys and values of each sequence are gathered into one tensor as wide as the block tables, so shapes follow from the
step's, and a captured graph stays right as contexts grow. Scores of 256 rows a sequence exist at once.
"""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

_TOKENS_AT_ONCE = 256


def heads_of(
    cache: torch.Tensor, scales: torch.Tensor | None, block_offsets: torch.Tensor, bits: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the cached keys or values of block tables ``[spans, blocks]``: ``[spans, positions, heads, dim]``."""
    found = cache[block_offsets].flatten(1, 2)
    if scales is None:
        return found.to(dtype)
    if bits == 4:
        found = torch.cat([found & 15, found >> 4], -1)
    scale, zero = scales[block_offsets].flatten(1, 2).float().split(1, -1)
    return ((found.float() - zero) * scale).to(dtype)


def flex_prompt_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_start_loc: torch.Tensor,
    q_seqlens: torch.Tensor,
    kv_seqlens: torch.Tensor,
    block_offsets: torch.Tensor,
    *,
    max_q_len: int,
    v_dim: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    bits: int = 16,
) -> torch.Tensor:
    """Return the attention of a step's tokens; parameters and result are those of our ``prompt_attention``."""
    tokens = len(query)
    keys = heads_of(k_cache, k_scales, block_offsets, bits, query.dtype)
    values = heads_of(v_cache, v_scales, block_offsets, bits, query.dtype)
    is_written = torch.arange(values.shape[1], device=query.device) < kv_seqlens[:, None]
    values = values[..., :v_dim].masked_fill(~is_written[:, :, None, None], 0.0)  # whose weights are 0 times anything
    before = kv_seqlens - q_seqlens  # tokens of each sequence in earlier steps

    def part(begin: int, end: int) -> torch.Tensor:
        """Return the results of these tokens of each sequence: ``[spans, end - begin, heads, v_dim]``."""

        def score(
            given: torch.Tensor, span: torch.Tensor, _: torch.Tensor, token: torch.Tensor, position: torch.Tensor
        ) -> torch.Tensor:
            if softcap:
                given = torch.tanh(given / softcap) * softcap
            distance = before[span] + begin + token - position
            is_seen = (distance >= 0) & (distance < window) if window else distance >= 0
            return torch.where(is_seen, given, float("-inf"))

        index = (q_start_loc[:, None] + torch.arange(begin, end, device=query.device)).clamp(max=tokens - 1)
        out, more = flex_attention(
            query[index].transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), score, scale=scale,
            enable_gqa=True, return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        if sinks is not None:
            out = out * torch.sigmoid(more.lse - sinks.float()[:, None])[..., None].to(out.dtype)
        return out.transpose(1, 2)

    parts = [part(begin, min(begin + _TOKENS_AT_ONCE, max_q_len)) for begin in range(0, max_q_len, _TOKENS_AT_ONCE)]
    token = torch.arange(tokens, device=query.device)
    span = torch.searchsorted(q_start_loc.contiguous(), token, right=True).sub(1).clamp(min=0)
    return torch.cat(parts, 1)[span, (token - q_start_loc[span]).clamp(max=max_q_len - 1)]
