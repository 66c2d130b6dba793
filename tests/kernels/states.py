"""Recurrent mixers on a device: the states of a layer in pages, and the operators that change them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tests.kernels.device import Device

# Rows of one sequence in a step: first row, how many, the page of its state, whether that is all zeros before.
StateSpan = tuple[int, int, int, bool]

BEFORE, AFTER = 4, 8  # floats of a page that are not the state's


@dataclass(frozen=True)
class Recurrence:
    """The rule of ``backend_cpp/kernels/recurrence.h``; the recurrent state is ``[heads, key_dim, value_dim]``.

    ``decay_width`` is 0 for a decay of each head that never changes, 1 for one of each row and head, and ``key_dim``
    for one of each channel of the key as well.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    has_delta: bool
    decay_width: int
    has_beta: bool = True
    has_skip: bool = False


@dataclass(frozen=True)
class RecurrenceInputs:
    """Of some rows: ``q``, ``k`` ``[rows, key_heads, key_dim]``, ``v`` ``[rows, heads, value_dim]``.

    ``decay`` is ``[heads]``, ``[rows, heads]`` or ``[rows, heads, key_dim]``; ``beta`` is ``[rows, heads]`` or None,
    ``skip`` ``[heads]`` or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor | None
    skip: torch.Tensor | None


class States:
    """The states of one layer in pages, all of which is NaN at first: what was never written must never be read.

    Attributes
    ----------
    pages
        ``[pages, floats]``.
    is_rest_untouched
        Whether nothing was written that is no state's and no result's.
    """

    def __init__(self, device: Device, pages: int, size: int) -> None:
        self._native = device.native
        self.pages = torch.full((pages, BEFORE + size + AFTER), float("nan"))
        self.is_rest_untouched = True

    def _keep(self, pages: np.ndarray) -> None:
        self.pages = torch.from_numpy(pages)
        rest = torch.cat([self.pages[:, :BEFORE], self.pages[:, -AFTER:]], dim=1)
        self.is_rest_untouched &= bool(rest.isnan().all())

    def state(self, page: int) -> torch.Tensor:
        """Return what is in a page."""
        return self.pages[page, BEFORE:-AFTER]

    def convolve(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        spans: Sequence[StateSpan],
        *,
        has_silu: bool,
    ) -> torch.Tensor:
        """Return the convolution of ``x`` ``[rows, channels]`` with ``weight`` ``[channels, kernel]``."""
        channels = x.shape[1]
        wide = torch.nn.functional.pad(x, (0, 3), value=7.0)
        shift = None if bias is None else bias.numpy()
        y, pages = self._native.causal_conv(
            wide.numpy(), weight.numpy(), shift, has_silu, self.pages.numpy(), BEFORE, list(spans)
        )
        self._keep(pages)
        self.is_rest_untouched &= bool((y[:, channels:] == 7).all())
        return torch.from_numpy(y[:, :channels])

    def recur(self, rule: Recurrence, inputs: RecurrenceInputs, spans: Sequence[StateSpan]) -> torch.Tensor:
        """Return the recurrence's results ``[rows, heads, value_dim]``; those of rows of no span are NaN."""

        def spread(x: torch.Tensor) -> np.ndarray:
            return torch.nn.functional.pad(x, (0, 5), value=float("nan")).numpy()

        like = np.full(inputs.v.shape, np.nan, np.float32)
        beta = None if inputs.beta is None else inputs.beta.numpy()
        skip = None if inputs.skip is None else inputs.skip.numpy()
        out, pages = self._native.recurrence(
            spread(inputs.q), spread(inputs.k), spread(inputs.v), rule.key_dim, rule.has_delta,
            inputs.decay.numpy(), beta, skip, self.pages.numpy(), BEFORE, list(spans), like,
        )  # fmt: skip
        self._keep(pages)
        return torch.from_numpy(out)


def recurrence_gates(
    device: Device,
    a: torch.Tensor,
    b: torch.Tensor | None,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    dt_limits: tuple[float, float] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return decays, shaped as ``a`` ``[rows, heads, width]``, and betas ``[rows, heads]``.

    With limits they are Mamba's. ``b`` ``[rows, heads]`` may be missing; then the betas are NaN but with limits.
    """
    rows, heads, _ = a.shape
    wide = torch.nn.functional.pad(a.flatten(1), (0, 3), value=float("nan"))
    strengths = None if b is None else torch.nn.functional.pad(b, (0, 2), value=float("nan")).numpy()
    decay, beta = device.native.recurrence_gates(
        int(dt_limits is not None), wide.numpy(), strengths, a_log.numpy(), dt_bias.numpy(),
        *(dt_limits or (0.0, 0.0)), np.full(a.shape, np.nan, np.float32), np.full((rows, heads), np.nan, np.float32),
    )  # fmt: skip
    return torch.from_numpy(decay), torch.from_numpy(beta)


GATES = ("sigmoid", "silu", "linear")


def gate_heads(device: Device, gate: torch.Tensor, x: torch.Tensor, kind: str) -> torch.Tensor:
    """Return ``x`` ``[rows, heads, head_dim]`` times a function of ``gate``."""
    wide = torch.nn.functional.pad(gate, (0, 3), value=float("nan"))
    return torch.from_numpy(device.native.gate_heads(kind, wide.numpy(), x.numpy()))
