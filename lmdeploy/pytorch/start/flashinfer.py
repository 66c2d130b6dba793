"""Attention of prompts over the paged cache by FlashInfer's Python package, where it is installed.

A step is planned by its first layer and the plan kept for the others: planning reads the lengths back to the host.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from lmdeploy.pytorch.paged import AttentionCall
from lmdeploy.pytorch.step_context import StepContext

_WORKSPACE_BYTES = 128 << 20
_TYPES = (torch.float16, torch.bfloat16)


def is_installed() -> bool:
    """Return whether the package is there."""
    return find_spec("flashinfer") is not None


def takes(dtype: torch.dtype) -> bool:
    """Return whether it attends over a cache of a type."""
    return dtype in _TYPES


def can_attend(call: AttentionCall, bits: int) -> bool:
    """Return whether it knows such a layer: no codes in its cache, no sinks."""
    return bits == 16 and call.sinks is None


class FlashInferPrompts:
    """Attends in steps with prompts.

    Parameters
    ----------
    device
        Where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[Any, ...], Any] = {}

    def attend(
        self, step: StepContext, call: AttentionCall, query: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor
    ) -> torch.Tensor:
        """Return what a step's queries ``[rows, heads, dim]`` see: ``[rows, heads, value dim]``."""
        rule = (call.scale, call.window, call.softcap, query.shape[1:], v_cache.shape[2:], query.dtype)
        planned = step.extras.setdefault("flashinfer", set())
        if rule not in planned:
            self._plan(rule, step, call, query, k_cache, v_cache)
            planned.add(rule)
        attended: torch.Tensor = self._wrappers[rule].run(query.contiguous(), (k_cache, v_cache))
        return attended

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

    Returns
    -------
    tuple
        Where each sequence's rows and blocks begin, ``[spans + 1]``, and how many tokens its last block has
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


def _begins(counts: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
