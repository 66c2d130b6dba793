"""Per-row sum over routed experts, independent of the other rows of the step."""

from __future__ import annotations

from collections.abc import Callable

import torch


def sum_of_chosen(
    hidden_states: torch.Tensor,  # ``[rows, hidden]``
    # ``[rows, chosen]``: numbers of experts, and what their outputs are multiplied with
    weights: torch.Tensor,
    ids: torch.Tensor,
    # Returns an expert's ``[some, hidden]`` for the ``[some, hidden]`` rows that chose it
    run: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Return ``[rows, hidden]``: experts are added in the order in which a row chose them."""
    parts = hidden_states.new_empty(*ids.shape, hidden_states.shape[-1])
    for expert in ids.unique().tolist():
        row, slot = (ids == expert).nonzero(as_tuple=True)
        parts[row, slot] = run(expert, hidden_states[row]).to(parts.dtype)
    parts *= weights[..., None].to(parts.dtype)
    total = parts[:, 0]
    for slot in range(1, ids.shape[1]):
        total = total + parts[:, slot]
    return total
