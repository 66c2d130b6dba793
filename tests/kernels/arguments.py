"""Arguments of operators, besides tensors; named as in ``backend_cpp/kernels``."""

from dataclasses import dataclass

import torch

# Rows of one sequence in a step: first row, how many, position of the first, ids of the cache's blocks.
Span = tuple[int, int, int, list[int]]


@dataclass(frozen=True)
class HeadSizes:
    """Query heads, key/value heads, and the length of a key and of a value."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class AttentionRule:
    """Scaling, cap and mask of a score: the product of query and key times ``scale``; 0 means no cap and no window.

    ``alibi_slopes`` and ``sinks`` are ``[num_heads]`` float32, ``distance_biases`` ``[num_heads, 2 reach + 1]``. Rows
    of ``images``, each from a position to another, see all of theirs.
    """

    scale: float
    softcap: float = 0.0
    window: int = 0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    images: tuple[tuple[int, int], ...] = ()
    distance_biases: torch.Tensor | None = None

    def kv_len_of(self, position: int) -> int:
        """Return one past the last key that a row sees."""
        return next((end for begin, end in self.images if begin <= position < end), position + 1)


@dataclass(frozen=True)
class Router:
    """How rows choose their experts; ``choice_bias`` and ``expert_scales`` are ``[num_experts]`` float32."""

    num_experts: int
    top_k: int
    score: str = "softmax"
    mixer_jitter: float = 0.0
    num_groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    choice_bias: torch.Tensor | None = None
    normalize: bool = False
    scale: float = 1.0
    expert_scales: torch.Tensor | None = None
    token_experts: torch.Tensor | None = None  # int32 ``[tokens, top_k]``, with ``tokens``, int32 ``[rows]``
    tokens: torch.Tensor | None = None
