"""Recurrent mixers against float64, in steps of random spans, and their bits whatever the steps are."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from tests.kernels.device import Device
from tests.kernels.states import (
    GATES,
    LruInputs,
    Recurrence,
    RecurrenceInputs,
    ScanInputs,
    States,
    StateSpan,
    gate_heads,
    recurrence_gates,
)

DELTA = Recurrence(heads=4, key_heads=2, key_dim=24, value_dim=37, has_delta=True, decay_width=1)
RULES = {
    "gated delta": DELTA,
    "gated delta of Qwen3.5": replace(DELTA, heads=2, key_heads=1, key_dim=128, value_dim=128),
    "gated delta of one channel": replace(DELTA, key_dim=1, value_dim=1),
    "Kimi delta attention": replace(DELTA, key_heads=4, key_dim=33, value_dim=64, decay_width=33),
    "Mamba-2": Recurrence(6, 2, 16, 50, has_delta=False, decay_width=1, has_skip=True),
    "Mamba-2 of the largest state": Recurrence(1, 1, 256, 20, has_delta=False, decay_width=1, has_skip=True),
    "lightning attention": Recurrence(3, 3, 40, 40, has_delta=False, decay_width=0, has_beta=False),
}
LENGTHS = [1, 2, 19, 45]  # the CPU takes spans of 32 rows and more another way
FIRSTS = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]

# Of a step: the rows of each sequence that it computes, as sequence, first token and count.
Step = list[tuple[int, int, int]]


def whole_steps(lengths: list[int]) -> Iterator[Step]:
    """Yield steps that compute one sequence each."""
    for sequence, length in enumerate(lengths):
        yield [(sequence, 0, length)]


def random_steps(lengths: list[int], seed: int) -> Iterator[Step]:
    """Yield steps that compute parts of several sequences, often of single tokens and sometimes of none."""
    rng = random.Random(seed)
    done = [0] * len(lengths)
    while done != lengths:
        step = []
        for sequence in rng.sample(range(len(lengths)), rng.randint(1, len(lengths))):
            count = min(rng.choice([0, 1, 1, 1, 2, 3, 5, 11, 33]), lengths[sequence] - done[sequence])
            step.append((sequence, done[sequence], count))
            done[sequence] += count
        yield step


def run_steps(
    steps: Iterator[Step], lengths: list[int], compute: Callable[[list[tuple[int, int]], list[StateSpan]], torch.Tensor]
) -> list[torch.Tensor]:
    """Return the rows of each sequence, which is in the page of its number plus 1.

    ``compute`` gets the sequence and token of each row; between the rows of two spans is one of none.
    """
    results: list[list[torch.Tensor]] = [[] for _ in lengths]
    for step in steps:
        rows: list[tuple[int, int]] = [(0, 0)]
        spans: list[StateSpan] = []
        for sequence, first, count in step:
            spans.append((len(rows), count, sequence + 1, first == 0))
            rows += [(sequence, first + i) for i in range(count)] + [(0, 0)]
        out = compute(rows, spans)
        for (sequence, _, _), (first_token, count, _, _) in zip(step, spans, strict=True):
            results[sequence].append(out[first_token : first_token + count])
    return [torch.cat(parts) for parts in results]


def run_in_parts(
    device: Device, page: int, seed: int, compute: Callable[[States, list[int], list[StateSpan]], torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return rows and last states of sequences in random steps, which have the same bits when computed whole.

    ``page``: values of a state. ``compute`` gets the states, the numbers of rows among those of all sequences, and
    spans.
    """
    found = []
    for steps in (random_steps(LENGTHS, seed), whole_steps(LENGTHS)):
        states = States(device, len(LENGTHS) + 2, page)

        def step(rows: list[tuple[int, int]], spans: list[StateSpan], states: States = states) -> torch.Tensor:
            return compute(states, [FIRSTS[sequence] + token for sequence, token in rows], spans)

        out = run_steps(steps, LENGTHS, step)
        assert states.is_rest_untouched
        found.append((out, [states.state(i + 1) for i in range(len(LENGTHS))]))
    parts, whole = found
    for native, others in zip(parts, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(native, others, strict=True))
    return parts


def random_inputs(rule: Recurrence, rows: int) -> RecurrenceInputs:
    """Return inputs as of a layer: keys and queries normalized, decays from nearly none to nearly all."""

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    shape = {0: (rule.heads,), 1: (rows, rule.heads)}.get(rule.decay_width, (rows, rule.heads, rule.key_dim))
    return RecurrenceInputs(
        unit(torch.randn(rows, rule.key_heads, rule.key_dim)),
        unit(torch.randn(rows, rule.key_heads, rule.key_dim)),
        torch.randn(rows, rule.heads, rule.value_dim),
        torch.exp(-torch.nn.functional.softplus(torch.randn(shape) * 4)),
        torch.rand(rows, rule.heads) if rule.has_beta else None,
        torch.randn(rule.heads) if rule.has_skip else None,
    )


def rows_of(inputs: RecurrenceInputs, rows: list[int]) -> RecurrenceInputs:
    """Return the inputs of some rows."""
    return RecurrenceInputs(
        inputs.q[rows],
        inputs.k[rows],
        inputs.v[rows],
        inputs.decay if inputs.decay.ndim == 1 else inputs.decay[rows],
        None if inputs.beta is None else inputs.beta[rows],
        inputs.skip,
    )


def exact_recurrence(rule: Recurrence, inputs: RecurrenceInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return results and the last state of one sequence in float64."""
    group = rule.heads // rule.key_heads
    q, k = (x.double().repeat_interleave(group, dim=1) for x in (inputs.q, inputs.k))
    v = inputs.v.double()
    rows = len(v)
    decay = inputs.decay.double()
    decay = decay.expand(rows, rule.heads) if decay.ndim == 1 else decay
    decay = decay.view(rows, rule.heads, -1, 1)
    state = torch.zeros(rule.heads, rule.key_dim, rule.value_dim, dtype=torch.float64)
    out = torch.empty_like(v)
    for t in range(rows):
        state = state * decay[t]
        known = torch.einsum("hkv,hk->hv", state, k[t]) if rule.has_delta else 0
        written = v[t] - known
        if inputs.beta is not None:
            written = written * inputs.beta[t, :, None].double()
        state = state + k[t, :, :, None] * written[:, None]
        out[t] = torch.einsum("hkv,hk->hv", state, q[t])
        if inputs.skip is not None:
            out[t] += inputs.skip.double()[:, None] * v[t]
    return out, state


def recur_in_steps(
    device: Device, rule: Recurrence, inputs: list[RecurrenceInputs], steps: Iterator[Step]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return results and last states of sequences computed in these steps."""
    lengths = [len(sequence.v) for sequence in inputs]
    firsts = [sum(lengths[:i]) for i in range(len(lengths))]
    everything = RecurrenceInputs(
        *(torch.cat([getattr(x, name) for x in inputs]) for name in ("q", "k", "v")),
        inputs[0].decay if rule.decay_width == 0 else torch.cat([x.decay for x in inputs]),
        None if inputs[0].beta is None else torch.cat([x.beta for x in inputs if x.beta is not None]),
        inputs[0].skip,
    )
    states = States(device, len(lengths) + 2, rule.heads * rule.key_dim * rule.value_dim)
    out = run_steps(
        steps,
        lengths,
        lambda rows, spans: states.recur(rule, rows_of(everything, [firsts[s] + t for s, t in rows]), spans),
    )
    assert states.is_rest_untouched
    shape = (rule.heads, rule.key_dim, rule.value_dim)
    return out, [states.state(i + 1).view(shape) for i in range(len(lengths))]


def sequences_of(rule: Recurrence, seed: int) -> list[RecurrenceInputs]:
    torch.manual_seed(seed)
    inputs = [random_inputs(rule, length) for length in LENGTHS]
    # The layer's own tensors are the same for all.
    inputs_of = {"skip": inputs[0].skip} | ({"decay": inputs[0].decay} if rule.decay_width == 0 else {})
    return [replace(sequence, **inputs_of) for sequence in inputs]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(2))
def test_sequences_in_random_steps_agree_with_float64(device: Device, name: str, seed: int) -> None:
    rule = RULES[name]
    inputs = sequences_of(rule, seed)
    out, states = recur_in_steps(device, rule, inputs, random_steps(LENGTHS, seed))
    for sequence, results, state in zip(inputs, out, states, strict=True):
        exact, last = exact_recurrence(rule, sequence)
        torch.testing.assert_close(results.double(), exact, rtol=0, atol=2e-6 * exact.abs().max().item())
        torch.testing.assert_close(state.double(), last, rtol=0, atol=2e-6 * last.abs().max().item())


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_a_sequence_has_the_same_bits_alone_and_in_chunks_and_with_others(device: Device, name: str, seed: int) -> None:
    rule = RULES[name]
    inputs = sequences_of(rule, seed)
    whole = recur_in_steps(device, rule, inputs, whole_steps(LENGTHS))
    parts = recur_in_steps(device, rule, inputs, random_steps(LENGTHS, seed))
    for native, others in zip(whole, parts, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(native, others, strict=True))


def test_the_gated_delta_rule_agrees_with_transformers(device: Device) -> None:
    rule = replace(DELTA, heads=3, key_heads=3, key_dim=64, value_dim=48)
    torch.manual_seed(5)
    inputs = random_inputs(rule, 25)
    assert inputs.beta is not None
    heads_first = (inputs.q, inputs.k, inputs.v, inputs.decay.log(), inputs.beta)
    reference, last = torch_recurrent_gated_delta_rule(*(x[None] for x in heads_first), None, True)
    (out,), (state,) = recur_in_steps(device, rule, [inputs], iter([[(0, 0, 11)], [(0, 11, 14)]]))
    torch.testing.assert_close(out / 64**0.5, reference[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state, last[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("channels", "kernel", "has_bias", "has_silu"),
    [
        (37, 4, True, True),
        (1, 4, False, True),
        (144, 3, False, False),
        (16, 2, True, False),
        (300, 8, True, True),
        (5, 1, True, True),
    ],
)
def test_convolutions_in_random_steps_agree_with_float64_and_with_whole_ones(
    device: Device, channels: int, kernel: int, has_bias: bool, has_silu: bool
) -> None:
    torch.manual_seed(channels)
    weight, bias = torch.randn(channels, kernel), torch.randn(channels) if has_bias else None
    x = torch.randn(sum(LENGTHS), channels)
    parts, states = run_in_parts(
        device,
        (kernel - 1) * channels,
        kernel,
        lambda states, at, spans: states.convolve(x[at], weight, bias, spans, has_silu=has_silu),
    )
    for found, state, inputs in zip(parts, states, x.split(LENGTHS), strict=True):
        padded = torch.nn.functional.pad(inputs.double(), (0, 0, kernel - 1, 0))
        exact = torch.nn.functional.conv1d(padded.T[None], weight.double()[:, None], None, groups=channels)[0].T
        exact = exact + (0 if bias is None else bias.double())
        exact = torch.nn.functional.silu(exact) if has_silu else exact
        torch.testing.assert_close(found.double(), exact, rtol=2e-6, atol=2e-6)
        assert torch.equal(state, padded[len(padded) - (kernel - 1) :].flatten().float())


@pytest.mark.parametrize(("channels", "size"), [(1, 1), (37, 4), (64, 16), (150, 16)])
def test_selective_scans_in_random_steps_agree_with_float64_and_with_whole_ones(
    device: Device, channels: int, size: int
) -> None:
    torch.manual_seed(channels)
    count = sum(LENGTHS)
    rates, skip = -torch.rand(size, channels) * size - 0.01, torch.randn(channels)
    steps, x = torch.randn(count, channels) * 4, torch.randn(count, channels)
    keys, queries = torch.randn(count, size), torch.randn(count, size)

    def scan(states: States, at: list[int], spans: list[StateSpan]) -> torch.Tensor:
        return states.scan(ScanInputs(rates, skip, steps[at], keys[at], queries[at], x[at]), spans)

    parts, states = run_in_parts(device, size * channels, size, scan)
    for i, (first, length) in enumerate(zip(FIRSTS, LENGTHS, strict=True)):
        state = torch.zeros(size, channels, dtype=torch.float64)
        for t in range(length):
            step = torch.nn.functional.softplus(steps[first + t].double(), threshold=1e9)
            written = keys[first + t].double()[:, None] * step * x[first + t].double()
            state = torch.exp(rates.double() * step) * state + written
            exact = queries[first + t].double() @ state + skip.double() * x[first + t].double()
            torch.testing.assert_close(parts[i][t].double(), exact, rtol=0, atol=1e-5 * size)
        torch.testing.assert_close(states[i].view(size, channels).double(), state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 37, 150])
def test_gated_linear_recurrent_units_in_random_steps_agree_with_float64_and_with_whole_ones(
    device: Device, channels: int
) -> None:
    torch.manual_seed(channels)
    rates, biases = -torch.rand(channels) * 4 - 0.1, torch.randn(2, channels)
    x, gates = torch.randn(sum(LENGTHS), channels), torch.randn(2, sum(LENGTHS), channels) * 2

    def compute(states: States, at: list[int], spans: list[StateSpan]) -> torch.Tensor:
        return states.lru(LruInputs(rates, biases, gates[:, at].contiguous(), x[at]), spans)

    parts, states = run_in_parts(device, channels, channels, compute)
    inputs, decays = (gates.double() + biases.double()[:, None]).sigmoid()
    for i, (first, length) in enumerate(zip(FIRSTS, LENGTHS, strict=True)):
        state = torch.zeros(channels, dtype=torch.float64)
        for t in range(length):
            decay = (rates.double() * decays[first + t]).exp()
            scale = (1 - decay.square()).sqrt() if t else 1
            state = decay * state + scale * inputs[first + t] * x[first + t].double()
            torch.testing.assert_close(parts[i][t].double(), state, rtol=0, atol=1e-5)
        assert torch.equal(states[i], parts[i][-1])


@pytest.mark.parametrize("bound", [0.0, 5.0])
@pytest.mark.parametrize(("heads", "width"), [(1, 1), (16, 1), (37, 1), (3, 24), (2, 128)])
def test_gates_of_delta_rules_agree_with_float64(device: Device, heads: int, width: int, bound: float) -> None:
    torch.manual_seed(heads)
    a = torch.randn(7, heads, width) * torch.tensor([0.1, 1, 5, 20, 60, 1, 1])[:, None, None]
    b = torch.randn(7, heads) * 5
    a_log, dt_bias = torch.randn(heads), torch.randn(heads, width)
    # The sum is float32 in models too, and far below zero as wide as the softplus itself.
    step, rate = torch.nn.functional.softplus((a + dt_bias).double(), threshold=1e9), torch.exp(a_log.double())[:, None]
    exact = torch.exp(-bound * torch.sigmoid(rate * (a + dt_bias).double()) if bound else -rate * step)
    decay, beta = recurrence_gates(device, a, b, a_log, dt_bias, bound=bound)
    exponent = -exact.clamp(min=1e-40).log()
    assert ((decay.double() - exact).abs() <= exact * (exponent + 1) * 1e-6 + 2e-38).all()
    torch.testing.assert_close(beta.double(), torch.sigmoid(b.double()), rtol=1e-6, atol=0)
    assert recurrence_gates(device, a, None, a_log, dt_bias)[1].isnan().all()


def test_gates_of_mamba_agree_with_float64(device: Device) -> None:
    torch.manual_seed(3)
    a = torch.randn(9, 19, 1) * 6
    a_log, dt_bias = torch.randn(19), torch.randn(19, 1)
    raw = torch.nn.functional.softplus((a + dt_bias).double(), threshold=1e9)[..., 0]
    for low, high in [(0.0, float("inf")), (0.125, 2.0)]:
        step = raw.clamp(low, high)
        decay, beta = recurrence_gates(device, a, None, a_log, dt_bias, (low, high))
        torch.testing.assert_close(beta.double(), step, rtol=1e-6, atol=0)
        exponent = torch.exp(a_log.double()) * step
        error = (decay[..., 0].double() - torch.exp(-exponent)).abs()
        assert (error <= torch.exp(-exponent) * (exponent + 1) * 1e-6 + 2e-38).all()


def test_a_gate_that_is_not_a_number_stays_so_and_spoils_no_other(device: Device) -> None:
    a, b = torch.zeros(2, 5, 1), torch.zeros(2, 5)
    a[1, 2] = b[0, 3] = float("nan")
    for limits in (None, (0.0, 8.0)):
        decay, beta = recurrence_gates(device, a, b, torch.zeros(5), torch.zeros(5, 1), limits)
        assert decay.isnan().nonzero().tolist() == [[1, 2, 0]]
        assert beta.isnan().nonzero().tolist() == ([[0, 3]] if limits is None else [[1, 2]])


@pytest.mark.parametrize("kind", [*GATES, "softplus"])
def test_heads_are_gated(device: Device, kind: str) -> None:
    torch.manual_seed(1)
    gate, x = torch.randn(6, 3, 37) * 8, torch.randn(6, 3, 37)
    doubles = gate.double()
    functions = {
        "silu": torch.nn.functional.silu,
        "sigmoid": torch.sigmoid,
        "softplus": torch.nn.functional.softplus,
        "linear": lambda gates: gates,
    }
    exact = x.double() * functions[kind](doubles)
    torch.testing.assert_close(gate_heads(device, gate, x, kind).double(), exact, rtol=2e-6, atol=1e-30)
