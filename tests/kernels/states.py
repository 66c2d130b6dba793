"""Recurrent mixers on a device: the states of a layer in pages, and the operators that change them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lmdeploy.turbomind.spec.parts import ACTIVATIONS
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


@dataclass(frozen=True)
class ScanInputs:
    """Of some rows: ``steps``, ``x`` ``[rows, channels]``, ``keys``, ``queries`` ``[rows, key_dim]``; and the layer's.

    These are ``rates`` ``[key_dim, channels]`` and ``skip`` ``[channels]``.
    """

    rates: torch.Tensor
    skip: torch.Tensor
    steps: torch.Tensor
    keys: torch.Tensor
    queries: torch.Tensor
    x: torch.Tensor


@dataclass(frozen=True)
class LruInputs:
    """Inputs of a unit: rates ``[channels]``, biases ``[2, channels]``, gates ``[2, rows, channels]``."""

    rates: torch.Tensor
    biases: torch.Tensor
    gates: torch.Tensor
    x: torch.Tensor


class States:
    """The states of one layer in pages, all of which is NaN at first: what was never written must never be read.

    ``pages``: ``[pages, floats]``.
    """

    def __init__(self, device: Device, pages: int, size: int) -> None:
        self._native = device.native
        self.pages = torch.full((pages, BEFORE + size + AFTER), float("nan"))
        self._are_results_whole = True

    def _memory(self, spans: Sequence[StateSpan]) -> tuple[object, ...]:
        rows = [(first, count, page, int(is_fresh)) for first, count, page, is_fresh in spans]
        return self.pages, self.pages.shape[1] * 4, BEFORE * 4, rows, len(rows)

    @property
    def is_rest_untouched(self) -> bool:
        """Whether nothing was written that is no state's and no result's."""
        rest = torch.cat([self.pages[:, :BEFORE], self.pages[:, -AFTER:]], dim=1)
        return self._are_results_whole and bool(rest.isnan().all())

    def state(self, page: int) -> torch.Tensor:
        """Return the content of a page."""
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
        channels, kernel = weight.shape
        padded = torch.nn.functional.pad(x, (0, 3), value=7.0)
        params = (self._memory(spans), channels, kernel, weight, bias, has_silu)
        self._native.causal_conv(params, padded, len(x), padded)
        self._are_results_whole &= bool((padded[:, channels:] == 7).all())
        return padded[:, :channels]

    def recur(self, rule: Recurrence, inputs: RecurrenceInputs, spans: Sequence[StateSpan]) -> torch.Tensor:
        """Return the recurrence's results ``[rows, heads, value_dim]``; those of rows of no span are NaN."""

        def spread(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(x, (0, 5), value=float("nan"))[..., : x.shape[-1]]

        out = torch.full_like(inputs.v, torch.nan)
        params = (
            self._memory(spans), rule.heads, rule.key_heads, rule.key_dim, rule.value_dim, rule.has_delta,
            inputs.decay, rule.decay_width if inputs.decay.ndim > 1 else 0, inputs.beta, inputs.skip,
        )  # fmt: skip
        self._native.recurrence(params, spread(inputs.q), spread(inputs.k), spread(inputs.v), out)
        return out

    def scan(self, inputs: ScanInputs, spans: Sequence[StateSpan]) -> torch.Tensor:
        """Return the selective scan's results ``[rows, channels]``; those of rows of no span are NaN."""
        out = torch.full_like(inputs.x, torch.nan)
        padded = torch.nn.functional.pad(torch.cat([inputs.keys, inputs.queries], dim=1), (0, 3), value=float("nan"))
        size, channels = inputs.rates.shape
        arguments = (self._memory(spans), channels, size, inputs.rates, inputs.skip)
        self._native.selective_scan(*arguments, inputs.steps, padded, padded[:, size:], inputs.x, out)
        return out

    def lru(self, inputs: LruInputs, spans: Sequence[StateSpan]) -> torch.Tensor:
        """Return the gated linear recurrent unit's results ``[rows, channels]``; those of rows of no span are NaN."""
        out = torch.full_like(inputs.x, torch.nan)
        arguments = (self._memory(spans), inputs.x.shape[1], inputs.rates, inputs.biases)
        self._native.gated_lru(*arguments, inputs.gates[0], inputs.gates[1], inputs.x, out)
        return out


def recurrence_gates(
    device: Device,
    a: torch.Tensor,
    b: torch.Tensor | None,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    dt_limits: tuple[float, float] | None = None,
    bound: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return decays, shaped as ``a`` ``[rows, heads, width]``, and betas ``[rows, heads]``.

    With limits they are Mamba's. ``b`` ``[rows, heads]`` may be missing; then the betas are NaN but with limits.
    """
    rows, heads, width = a.shape
    padded = torch.nn.functional.pad(a.flatten(1), (0, 3), value=float("nan"))
    strengths = None if b is None else torch.nn.functional.pad(b, (0, 2), value=float("nan"))
    params = (int(dt_limits is not None), heads, width, a_log, dt_bias, *(dt_limits or (0.0, 0.0)), bound)
    decay, beta = torch.full_like(a, torch.nan), torch.full((rows, heads), torch.nan)
    device.native.recurrence_gates(params, padded, strengths, rows, decay, beta)
    return decay, beta


GATES = ("sigmoid", "silu", "linear")


def gate_heads(device: Device, gate: torch.Tensor, x: torch.Tensor, kind: str) -> torch.Tensor:
    """Return ``x`` ``[rows, heads, head_dim]`` times a function of ``gate``."""
    padded, y = torch.nn.functional.pad(gate, (0, 3), value=float("nan")), x.clone()
    device.native.activate((*ACTIVATIONS, "sigmoid", "softplus", "linear").index(kind), padded[..., : x.shape[2]], y, y)
    return y
