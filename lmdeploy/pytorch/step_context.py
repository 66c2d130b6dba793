"""The step that a model runs: which tokens, at which positions, over which blocks of the cache.

A step holds tokens of several sequences one after the other, in one batch entry: ``[1, tokens, ...]``. While a model's
``forward`` runs, its step is the current one (`get_step_ctx_manager`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class StepContext:
    """One step of a model."""

    # ``[1, tokens]`` int64
    input_ids: torch.Tensor
    position_ids: torch.Tensor
    # ``[spans]`` int64: for each sequence its first token, how many tokens it has, and how many tokens it has with
    # these tokens
    q_start_loc: torch.Tensor
    q_seqlens: torch.Tensor
    kv_seqlens: torch.Tensor
    # ``[spans, most blocks]`` int64: the blocks of the cache with the keys and values of each sequence
    block_offsets: torch.Tensor
    kv_caches: Any  # what each layer's attention writes to and reads from (`lmdeploy.pytorch.paged.PagedCache`)
    is_decoding: bool  # whether every sequence has one row
    logits_indices: torch.Tensor  # ``[logits]`` int64: the tokens whose logits are asked for
    # ``[spans]`` int64: how many tokens each sequence's prompt has; None: ``kv_seqlens``
    prompt_lens: torch.Tensor | None = None
    max_q_len: int = 0  # the largest of ``q_seqlens``, which the host knows; 0: look at them
    # ``[count, hidden]``, and ``[1, tokens]`` bool: rows in place of the embeddings of some tokens; None: none
    input_embeddings: torch.Tensor | None = None
    input_embedding_indexing: torch.Tensor | None = None
    # ``[count, layers, hidden]``: what these rows add to the outputs of the first layers; None: nothing
    deeper_embeddings: torch.Tensor | None = None
    # ``[3, tokens]`` int64: frame, row and column of each token, of models whose positions have all three; else None
    grid_positions: torch.Tensor | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_sequences(
        cls,
        tokens: torch.Tensor,  # ``[tokens]`` int64, of one sequence after the other
        counts: Sequence[int],  # of each sequence: its tokens in the step
        kv_caches: Any,
        lengths: Sequence[int] | None = None,  # the same with its tokens before the step; None: there are none
        block_offsets: torch.Tensor | None = None,  # as in the class; None: nothing looks at them
        **fields: Any,  # in place of what follows from these; by default all logits are asked for
    ) -> StepContext:
        """Return a step of sequences."""
        q_lens = torch.tensor(counts, device=tokens.device)
        kv_lens = q_lens if lengths is None else torch.tensor(lengths, device=tokens.device)
        starts = q_lens.cumsum(0) - q_lens
        everything = torch.arange(len(tokens), device=tokens.device)
        made = {
            "position_ids": (everything + (kv_lens - q_lens - starts).repeat_interleave(q_lens))[None],
            "block_offsets": torch.zeros_like(q_lens)[:, None] if block_offsets is None else block_offsets,
            "is_decoding": len(tokens) == len(counts), "logits_indices": everything, "max_q_len": max(counts),
        }  # fmt: skip
        return cls(
            input_ids=tokens[None], q_start_loc=starts, q_seqlens=q_lens, kv_seqlens=kv_lens, kv_caches=kv_caches,
            **made | fields,
        )  # fmt: skip

    @property
    def attn_metadata(self) -> StepContext:
        """The step itself: what models hand on to their attention."""
        return self

    def embed(self, embedding: Any, inputs_embeds: torch.Tensor | None = None) -> torch.Tensor:
        """Return the embeddings ``[1, tokens, hidden]`` of all tokens, those that the step brings among them.

        ``embedding``: embedding of tokens. ``inputs_embeds``: embeddings to put those of the step into; None: of
        ``input_ids``.
        """
        made: torch.Tensor = embedding(self.input_ids) if inputs_embeds is None else inputs_embeds
        if self.input_embeddings is not None:
            made[self.input_embedding_indexing] = self.input_embeddings.to(made.dtype)
        return made

    @property
    def attention_mask(self) -> None:
        """None: who sees whom follows from the sequences."""
        return None


class StepContextManager:
    """Holds the step that runs."""

    def __init__(self) -> None:
        self._current: StepContext | None = None

    def current_context(self) -> StepContext:
        """Return the step that runs; raise `RuntimeError` if none does."""
        if self._current is None:
            raise RuntimeError("no step runs: attention works only while the engine runs the model")
        return self._current

    @contextmanager
    def context(self, step: StepContext) -> Iterator[StepContext]:
        """Make ``step`` the current one as long as the block runs."""
        before, self._current = self._current, step
        try:
            yield step
        finally:
            self._current = before


_manager = StepContextManager()


def get_step_ctx_manager() -> StepContextManager:
    """Return the manager of the step that runs in this process."""
    return _manager
