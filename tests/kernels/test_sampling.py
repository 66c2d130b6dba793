"""The next token on a device against the sampler's rules in float64, written out one row at a time.

Where the random number lies within BORDER (relative to the sum of weights) of the border between two tokens, or a
token within it of a cut-off, float32 weights may fall either way; such draws are left out, and must be few.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest

from tests.kernels.device import Device, host_module

BORDER = 2e-6
# Fields of SamplingFields, and SamplingParams besides.
NO_RULE = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": 0.0, "temperature": 1.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
}  # fmt: skip
DRAW = ("is_greedy", "seed", "draw")
Floats = np.ndarray[Any, np.dtype[np.float32]]


def philox(seed: int, counter: int) -> list[int]:
    """Return four words of Philox 4x32-10 (Salmon et al., 2011, measurement 2)."""
    mask = 2**32 - 1
    x = [counter & mask, counter >> 32, 0, 0]
    key = [seed & mask, seed >> 32]
    for _ in range(10):
        low, high = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(high >> 32) ^ x[1] ^ key[0], high & mask, (low >> 32) ^ x[3] ^ key[1], low & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return x


def uniform(seed: int, counter: int) -> float:
    first, second, *_ = philox(seed, counter)
    return ((first << 32 | second) >> 11) * 2.0**-53


def test_philox_gives_the_published_words() -> None:
    # Known responses of Random123, philox4x32 of 10 rounds: counter and key all 0.
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@dataclass(frozen=True)
class Rule:
    is_greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def draw(logits: Floats, rule: Rule, u: float) -> tuple[int, bool]:
    """Return the token, and whether it is beyond doubt."""
    order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
    weights = np.exp((logits.astype(np.float64) - logits.max()) / np.float32(rule.temperature))
    kept = order[: rule.top_k] if 0 < rule.top_k < len(logits) else order
    is_sure = True
    if rule.top_p < 1:
        share = np.float64(np.float32(rule.top_p)) * weights[kept].sum()
        sums = weights[kept].cumsum()
        is_sure &= bool((np.abs(sums - share) > BORDER * share).all())
        kept = kept[: int((sums < share).sum()) + 1]
    if rule.min_p > 0:
        is_sure &= bool((np.abs(weights[kept] - rule.min_p) > BORDER * rule.min_p).all())
        kept = kept[weights[kept] >= rule.min_p]
    if not 0 < rule.top_k < len(logits) and rule.top_p == 1:
        kept = np.sort(kept)  # what nothing ranks is drawn from in the order of ids
    sums = weights[kept].cumsum()
    target = u * sums[-1]
    is_sure &= bool((np.abs(sums - target) > BORDER * sums[-1]).all())
    return int(kept[(sums <= target).sum()]), is_sure


def sampling_row(given: dict[str, Any]) -> tuple[Any, ...]:
    """Return the fields of ``SamplingRow``."""
    params = (tuple(given.get(name, off) for name, off in NO_RULE.items()), *(given.get(x, 0) for x in DRAW))
    biases, forbidden = given.get("biases", []), given.get("forbidden", np.empty(0, np.int32))
    lists = (biases or None, len(biases), forbidden, len(forbidden))
    return params, given.get("seen"), given.get("counts"), *lists, given.get("mask")


def sample(cuda: Device, logits: Floats, rows: list[dict[str, Any]]) -> tuple[list[int], Floats]:
    tokens, changed = np.full(len(rows), -7, np.int32), logits.copy()
    cuda.native.sample([sampling_row(row) for row in rows], changed, logits.shape[1], len(rows), tokens)
    return tokens.tolist(), changed


RULES = [
    Rule(),
    Rule(temperature=0.3),
    Rule(temperature=3.0),
    Rule(min_p=0.1),
    Rule(temperature=2.0, min_p=0.02),
    Rule(top_k=50),
    Rule(top_k=2),
    Rule(top_k=700, temperature=2.0),
    Rule(top_p=0.9),
    Rule(top_p=0.2),
    Rule(top_p=0.97, temperature=1.7, min_p=0.01),
    Rule(top_k=40, top_p=0.8),
    Rule(top_k=40, top_p=0.95, min_p=0.05, temperature=0.7),
]


@pytest.mark.parametrize("vocab", [50, 2048, 7001])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_draws_follow_the_rules_in_float64(cuda: Device, vocab: int, step: float) -> None:
    random = np.random.default_rng(vocab)
    logits = (random.standard_normal((2 * len(RULES), vocab)) * 3).astype(np.float32)
    if step:  # many equal ones
        logits = ((logits / step).round() * step).astype(np.float32)
    logits[:, vocab // 3] = -np.inf
    rules = [rule for rule in RULES for _ in range(2)]
    rows = [asdict(rule) | {"seed": 2**40 + i, "draw": 3 * i} for i, rule in enumerate(rules)]
    tokens, _ = sample(cuda, logits, rows)
    sure = 0
    for i, rule in enumerate(rules):
        expected, is_sure = draw(logits[i], rule, uniform(2**40 + i, 3 * i))
        sure += is_sure
        assert tokens[i] == expected or not is_sure, rule
    assert sure >= 0.9 * len(rules)


def test_ten_thousand_rows_draw_what_the_host_draws(cuda: Device, *, all_cases: bool) -> None:
    random = np.random.default_rng(7)
    logits = (random.standard_normal((10_000 if all_cases else 500, 40)) * 3).astype(np.float32)
    logits[::5] = logits[::5].round()  # equal ones
    rules = [*RULES, Rule(is_greedy=True)]
    rows = [asdict(rules[i % len(rules)]) | {"seed": i, "draw": i * i} for i in range(len(logits))]
    here, there = sample(cuda, logits, rows)[0], host_module().choose_on_host(rows, logits)[0]
    others = [i for i in range(len(logits)) if here[i] != there[i]]
    assert len(others) <= 2
    for i in others:
        assert not draw(logits[i], rules[i % len(rules)], uniform(i, i * i))[1]


@pytest.mark.parametrize(
    "rule", [Rule(top_k=3000), Rule(top_p=0.95), Rule(top_k=4000, top_p=0.9), Rule(top_p=0.9, min_p=0.3)]
)
def test_rows_whose_candidates_are_many_are_drawn_from_too(cuda: Device, rule: Rule) -> None:
    # Nearly flat: a nucleus of thousands of tokens.
    logits = np.random.default_rng(1).uniform(0, 1, (3, 5000)).astype(np.float32)
    logits[2] = 0.5  # flat
    tokens, _ = sample(cuda, logits, [asdict(rule) | {"seed": 9, "draw": i} for i in range(3)])
    for i in range(3):
        expected, is_sure = draw(logits[i], rule, uniform(9, i))
        assert tokens[i] == expected or not is_sure
        assert is_sure or i == 2


@pytest.mark.parametrize("rule", [Rule(), Rule(top_k=8), Rule(top_p=0.7), Rule(min_p=0.2)])
def test_tokens_come_as_often_as_their_weights_say(cuda: Device, rule: Rule) -> None:
    row = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))
    tokens, _ = sample(cuda, np.tile(row, (200, 1)), [asdict(rule) | {"seed": 5, "draw": i} for i in range(200)])
    allowed = {(1.0, 0.0): 5, (0.7, 0.0): 2, (1.0, 0.2): 4}[rule.top_p, rule.min_p]
    weights = np.exp(row[:allowed]) / np.exp(row[:allowed]).sum()
    counts = np.bincount(tokens, minlength=5)
    assert counts[allowed:].sum() == 0
    # 5 standard deviations; draws depend on nothing but seed and number, so this is no flaky test.
    assert (np.abs(counts[:allowed] - 200 * weights) < 5 * np.sqrt(200 * weights)).all()


def test_greedy_takes_the_first_of_the_largest(cuda: Device) -> None:
    logits = np.random.default_rng(0).standard_normal((8, 5000)).astype(np.float32)
    logits[0, [4000, 77, 2048]] = 9
    logits[1, 4999] = 9
    logits[2] = -np.inf
    logits[3, 2500] = np.nan
    logits[4, [3, 4000]] = np.inf
    logits[5] = -1.0
    logits[5, 10], logits[5, 9] = 0.0, -0.0
    logits[6, 300] = 50
    logits[7, 0] = np.nan
    rules = [Rule(is_greedy=True)] * 4 + [Rule(), Rule(is_greedy=True), Rule(top_k=1), Rule(top_p=0.5)]
    assert sample(cuda, logits, [asdict(rule) for rule in rules])[0] == [77, 4999, -1, -1, 3, 9, 300, -1]


def bits_of(allowed: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    padded = np.zeros(-(-len(allowed) // 32) * 32, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


def test_penalties_biases_and_masks_change_logits_as_float32_does(cuda: Device) -> None:
    random = np.random.default_rng(2)
    vocab = 4500
    logits = random.standard_normal((3, vocab)).astype(np.float32)
    seen, allowed = random.random(vocab) < 0.3, random.random(vocab) < 0.5
    counts = np.where(random.random(vocab) < 0.1, random.integers(1, 9, vocab), 0).astype(np.int32)
    biases = [(7, 2.5), (4499, -1.0), (2048, 100.0)]
    forbidden = np.array([2048, 3, 4000], np.int32)
    row = asdict(Rule(is_greedy=True)) | {
        "repetition_penalty": 1.3, "seen": bits_of(seen), "presence_penalty": 0.3, "frequency_penalty": 0.17,
        "counts": counts, "biases": biases, "forbidden": forbidden, "mask": bits_of(allowed),
    }  # fmt: skip
    tokens, changed = sample(cuda, logits, [asdict(Rule(is_greedy=True)), row, asdict(Rule(is_greedy=True))])
    assert (changed[[0, 2]] == logits[[0, 2]]).all()

    expected = logits[1].copy()
    penalty = np.float32(1.3)
    expected = np.where(seen, np.where(expected > 0, expected / penalty, expected * penalty), expected)
    taken_off = np.float32(0.3) + np.float32(0.17) * counts.astype(np.float32)
    expected = np.where(counts > 0, expected - taken_off, expected)
    for token, bias in biases:
        expected[token] += np.float32(bias)
    expected[forbidden] = -np.inf
    expected[~allowed] = -np.inf
    assert (changed[1] == expected).all()
    assert tokens == [int(x.argmax()) for x in (logits[0], expected, logits[2])]


@pytest.mark.parametrize("rule", [Rule(), Rule(top_k=20), Rule(top_p=0.9), Rule(is_greedy=True)])
def test_what_a_mask_hides_may_be_not_a_number(cuda: Device, rule: Rule) -> None:
    logits = np.zeros((1, 100), np.float32)
    logits[0, 40] = np.nan
    allowed = np.zeros(100, bool)
    allowed[[5, 64]] = True
    for number in range(6):
        tokens, _ = sample(cuda, logits, [asdict(rule) | {"mask": bits_of(allowed), "draw": number}])
        assert tokens[0] in (5, 64)


@pytest.mark.parametrize("rule", RULES)
def test_a_row_draws_the_same_alone_and_among_others(cuda: Device, rule: Rule) -> None:
    logits = np.random.default_rng(4).standard_normal((4, 3000)).astype(np.float32)
    rows = [asdict(other) | {"seed": 1, "draw": 2} for other in [RULES[0], rule, RULES[5], RULES[8]]]
    together, _ = sample(cuda, logits, rows)
    assert sample(cuda, logits[1:2].copy(), rows[1:2])[0] == together[1:2]


def test_tokens_are_noted(cuda: Device) -> None:
    tokens = np.array([3, 64, 3, -1, 99], np.int32)
    seen, counts = np.zeros(4, np.uint32), np.zeros(100, np.int32)
    for i in range(len(tokens)):
        cuda.native.record_tokens([sampling_row({"seen": seen, "counts": counts})], tokens[i : i + 1], 1)
    recorded = np.unpackbits(seen.view(np.uint8), bitorder="little").nonzero()[0]
    assert recorded.tolist() == [3, 64, 99]
    assert counts.nonzero()[0].tolist() == [3, 64, 99]
    assert counts[[3, 64, 99]].tolist() == [2, 1, 1]


@pytest.mark.parametrize("vocab", [40, 5000])
@pytest.mark.parametrize("top", [0, 1, 20])
def test_log_probabilities_are_those_of_float64(cuda: Device, vocab: int, top: int) -> None:
    random = np.random.default_rng(top)
    logits = (random.standard_normal((4, vocab)) * 4).astype(np.float32)
    logits[1] = logits[1].round()  # equal ones
    logits[2, ::2] = -np.inf
    logits[3] = 0
    tokens = np.array([0, vocab - 1, 1, 5], np.int32)
    chosen, ids, logprobs = np.empty(4, np.float32), np.empty((4, top), np.int32), np.empty((4, top), np.float32)
    cuda.native.log_probabilities(logits, vocab, 4, tokens, top, chosen, ids, logprobs)
    doubles = logits.astype(np.float64)
    exact = (
        doubles
        - np.log(np.exp(doubles - doubles.max(1, keepdims=True)).sum(1, keepdims=True))
        - doubles.max(1, keepdims=True)
    )
    assert np.allclose(chosen, exact[range(4), tokens], rtol=2.0**-23, atol=1e-12)
    expected = np.stack([np.lexsort((np.arange(vocab), -row))[:top] for row in doubles])
    assert (ids == expected).all()
    assert np.allclose(logprobs, np.take_along_axis(exact, expected, 1), rtol=2.0**-23, atol=1e-12)


def test_more_log_probabilities_than_there_are_tokens_are_refused(cuda: Device) -> None:
    with pytest.raises(RuntimeError, match="a vocabulary of 10"):
        cuda.native.log_probabilities(np.zeros((1, 10), np.float32), 10, 1, None, 11, None, None, None)


@pytest.mark.parametrize("size", [1, 7, 16, 49152])
def test_the_cpu_takes_the_first_of_the_largest(cpu: Device, size: int) -> None:
    logits = np.random.default_rng(size).normal(0, 4, size).round().astype(np.float32)
    assert cpu.module.argmax(logits) == int((logits == logits.max()).nonzero()[0][0])
    logits[size // 2] = np.inf
    assert cpu.module.argmax(logits) == size // 2


def test_the_cpu_refuses_nan_and_a_row_that_allows_nothing(cpu: Device) -> None:
    logits = np.zeros(100, np.float32)
    logits[63] = np.nan
    assert cpu.module.argmax(logits) == -1
    logits[:] = -np.inf
    assert cpu.module.argmax(logits) == -1
