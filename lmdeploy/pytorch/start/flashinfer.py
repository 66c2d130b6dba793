"""Attention over the paged cache by FlashInfer's Python package, where it is installed.

A step with prompts is planned by its first layer and the plan kept for the others: planning reads the lengths back to
the host. Steps of single tokens are captured as graphs; a graph's plans are made again before each replay, of what the
host knows, in the memory that the graph reads.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from lmdeploy.pytorch.paged import AttentionCall
from lmdeploy.pytorch.step_context import HostSpans, StepContext

_WORKSPACE_BYTES = 128 << 20
_TYPES = (torch.float16, torch.bfloat16)
_GROUP_FOR_TENSOR_CORES = 4  # heads of queries for each of keys


def is_installed() -> bool:
    """Return whether the package is there."""
    return find_spec("flashinfer") is not None


def takes(dtype: torch.dtype) -> bool:
    """Return whether it attends over a cache of a type."""
    return dtype in _TYPES


def supports(call: AttentionCall, bits: int) -> bool:
    """Return whether it knows such a layer: no codes in its cache, no sinks."""
    return bits == 16 and call.sinks is None


class FlashInferPrompts:
    """Attends in steps with prompts.

    ``device``: where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[Any, ...], Any] = {}

    def attention(
        self, step: StepContext, call: AttentionCall, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> torch.Tensor:
        """Return attention of a step's queries ``[rows, heads, dim]``: ``[rows, heads, value dim]``."""
        rule = (call.scale, call.window, call.softcap, query.shape[1:], v_cache.shape[2:], query.dtype)
        planned = step.extras.setdefault("flashinfer", set())
        if rule not in planned:
            self._plan(rule, step, call, query, k_cache, v_cache)
            planned.add(rule)
        output: torch.Tensor = self._wrappers[rule].run(query.contiguous(), (k_cache, v_cache))
        return output

    def _plan(
        self,
        rule: tuple[Any, ...],
        step: StepContext,
        call: AttentionCall,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
    ) -> None:
        if rule not in self._wrappers:
            wrapper = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
            self._wrappers[rule] = wrapper(self._workspace, "NHD")
        pages, table = page_lists(step, k_cache.shape[1])
        self._wrappers[rule].plan(
            **pages, paged_kv_indices=table, num_qo_heads=query.shape[1], num_kv_heads=k_cache.shape[2],
            head_dim_qk=query.shape[2], head_dim_vo=v_cache.shape[3], page_size=k_cache.shape[1], causal=True,
            sm_scale=call.scale, window_left=call.window - 1, logits_soft_cap=call.softcap or None,
            q_data_type=query.dtype, kv_data_type=k_cache.dtype,
        )  # fmt: skip


def page_lists(step: StepContext, block_len: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a step's sequences as FlashInfer takes them, int32.

    Returns where each sequence's rows and blocks begin, ``[spans + 1]``, and how many tokens its last block has
    ``[spans]``, by FlashInfer's names; and the blocks of all of them, one after the other.
    """
    blocks = (step.kv_seqlens + block_len - 1) // block_len
    width = step.block_offsets.shape[1]
    is_used = torch.arange(width, device=blocks.device) < blocks[:, None]
    lists = {
        "qo_indptr": _begins(step.q_seqlens), "paged_kv_indptr": _begins(blocks),
        "paged_kv_last_page_len": (step.kv_seqlens - (blocks - 1) * block_len).int(),
    }  # fmt: skip
    return lists, step.block_offsets[is_used].int()


class FlashInferTokens:
    """Attends in graphs of single tokens.

    ``device``: where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)  # one graph runs at a time

    def attention(
        self, step: StepContext, call: AttentionCall, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> torch.Tensor:
        """Return attention of the queries ``[rows, heads, dim]`` of a graph's step, of the same shape.

        The first call with a rule, before the graph is captured, plans for the step that the graph is made for.
        """
        assert step.plans is not None
        assert step.host_spans is not None
        rule = (call.scale, call.window, call.softcap, query.shape[1:], query.dtype)
        plan = step.plans.get(rule)
        if plan is None:
            plan = step.plans[rule] = TokenPlan(self._workspace, call, query, k_cache, step.host_spans)
        return plan.run(query, k_cache, v_cache)


class TokenPlan:
    """Inputs of the layers of one rule in a graph of this many rows."""

    def __init__(
        self,
        workspace: torch.Tensor,  # FlashInfer's, zeros at first
        # Of a layer
        call: AttentionCall,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        spans: HostSpans,  # what it plans for first; no later step has more blocks
    ) -> None:
        rows, heads, dim = query.shape
        self._block_len, kv_heads = k_cache.shape[1:3]
        memory = (torch.zeros(size, dtype=torch.int32, device=query.device) for size in (rows + 1, spans[1].size, rows))
        indptr, indices, last_lens = memory
        self._wrapper = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(
            workspace, "NHD", use_cuda_graph=True, use_tensor_cores=heads >= _GROUP_FOR_TENSOR_CORES * kv_heads,
            paged_kv_indptr_buffer=indptr, paged_kv_indices_buffer=indices, paged_kv_last_page_len_buffer=last_lens,
        )  # fmt: skip
        self._rule: dict[str, Any] = {
            "num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim": dim, "page_size": self._block_len,
            "sm_scale": call.scale, "window_left": call.window - 1, "logits_soft_cap": call.softcap or None,
            "q_data_type": query.dtype, "kv_data_type": k_cache.dtype,
        }  # fmt: skip
        self._copied = torch.cuda.Event() if query.is_cuda else None
        self.plan(spans)

    def plan(self, spans: HostSpans) -> None:
        """Prepare the next run: FlashInfer writes to the memory that it was given."""
        if self._copied is not None:
            self._copied.synchronize()  # the host's part of the last plan has been read
        lengths, table = spans
        blocks = -(-lengths // self._block_len)
        begins = np.concatenate([[0], blocks.cumsum()])
        used = table[np.arange(table.shape[1]) < blocks[:, None]]
        last = lengths - (blocks - 1) * self._block_len
        lists = (torch.from_numpy(array.astype(np.int32)) for array in (begins, used, last))
        self._wrapper.plan(*lists, **self._rule)
        if self._copied is not None:
            self._copied.record()

    def run(self, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        """Return attention of the queries."""
        output: torch.Tensor = self._wrapper.run(query.contiguous(), (k_cache, v_cache))
        return output


def _begins(counts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
