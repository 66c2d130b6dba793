"""Choice of the attention kernels of a GPU, and their self-check: rows of three sequences against float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from lmdeploy.pytorch.paged import AttentionCall, LayerShape
from lmdeploy.pytorch.start.trust import is_trusted
from lmdeploy.pytorch.step_context import StepContext

# For each sequence: tokens of the step, and all with them. Prompts, the rest of one, and a token.
_SPANS = ((20, 20), (5, 37), (1, 48))
_BLOCK_LEN = 16
AttentionFn = Callable[[StepContext, AttentionCall, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@cache
def uses_native(shape: LayerShape, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether our kernels attend in layers that keep ``shape`` of a token in a cache of ``dtype``.

    Else flex attention does.
    """
    problem = _Problem(shape, dtype, device)
    return is_trusted("attention", lambda: problem.wrong_with(native_prompts) or problem.wrong_with_decoding())


def native_prompts(
    step: StepContext, call: AttentionCall, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
) -> torch.Tensor:
    """Attend by our kernel over a 16-bit cache."""
    from lmdeploy.pytorch.kernels.prompt_attention import prompt_attention

    return prompt_attention(
        query, k_cache, v_cache, step.q_start_loc, step.q_seqlens, step.kv_seqlens, step.block_offsets,
        max_q_len=step.max_q_len, v_dim=v_cache.shape[3], scale=call.scale,
    )  # fmt: skip


class _Problem:
    """A step over a cache of random numbers, with what its tokens see in float64."""

    def __init__(self, shape: LayerShape, dtype: torch.dtype, device: torch.device) -> None:
        random = torch.Generator().manual_seed(1)
        lengths = torch.tensor(_SPANS)
        blocks = int(-(-lengths[:, 1].max() // _BLOCK_LEN))
        table = torch.randperm(len(_SPANS) * blocks, generator=random).view(len(_SPANS), blocks)
        pool_shape = (table.numel(), _BLOCK_LEN, shape.heads)
        k, v = (torch.randn(*pool_shape, dim, generator=random).to(dtype) for dim in (shape.key_dim, shape.value_dim))
        tokens = int(lengths[:, 0].sum())
        query = torch.randn(tokens, 2 * shape.heads, shape.key_dim, generator=random).to(dtype)
        self._call = AttentionCall(scale=shape.key_dim**-0.5)
        self._query, self._k, self._v = (tensor.to(device) for tensor in (query, k, v))
        self._lengths, self._table, self._device = lengths, table, device
        begins = [0, *lengths[:, 0].cumsum(0).tolist()]
        self._expected = torch.cat(
            [
                _attended(query[begin : begin + count], k[blocks].flatten(0, 1)[:tokens],
                          v[blocks].flatten(0, 1)[:tokens], self._call.scale)
                for begin, (count, tokens), blocks in zip(begins, _SPANS, table, strict=False)
            ]
        )  # fmt: skip
        # Weights, values and results are rounded to the type.
        self._limit = 8 * torch.finfo(dtype).eps * float(v.abs().max())

    def wrong_with(self, attention: AttentionFn) -> str:
        """Return how a step with prompts differs."""
        return self._difference(attention(self._step(), self._call, self._query, self._k, self._v), self._expected)

    def wrong_with_decoding(self) -> str:
        """Return how our kernel for decoding differs, for the last row of each sequence."""
        from lmdeploy.pytorch.kernels.decoding_attention import decoding_attention

        last = self._lengths[:, 0].cumsum(0) - 1
        output = decoding_attention(
            self._query[last.to(self._device)], self._k, self._v, self._step().kv_seqlens, self._table.to(self._device),
            v_dim=self._v.shape[3], scale=self._call.scale,
        )  # fmt: skip
        return self._difference(output, self._expected[last])

    def _step(self) -> StepContext:
        counts, lengths = self._lengths.T.tolist()
        tokens = torch.zeros(len(self._query), dtype=torch.int64, device=self._device)
        return StepContext.of_sequences(tokens, counts, None, lengths, self._table.to(self._device))

    def _difference(self, output: torch.Tensor, expected: torch.Tensor) -> str:
        off = float((output.double().cpu() - expected).abs().max())
        return "" if off <= self._limit else f"it differs from float64 by {off:.3g}, more than {self._limit:.3g}"


def _attended(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Return float64 causal attention of the last rows of a sequence: ``[rows, heads, value dim]``."""
    group = query.shape[1] // keys.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.einsum("ihd,jhd->hij", query.double() * scale, k)
    query_position = torch.arange(len(keys) - len(query), len(keys))[:, None]
    weights = scores.masked_fill(torch.arange(len(keys)) > query_position, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v)
