"""Tokens that PyTorch chooses against those of the engine's sampler, for the same logits, settings and seeds.

The engine adds float32 weights up, PyTorch integers. Where a draw is near the border between two tokens, or a token
near a cut-off (tests/kernels/test_sampling.py, BORDER), they may differ: such draws are counted.
"""

from typing import Any

import numpy as np
import pytest
import torch

from lmdeploy import _turbomind
from lmdeploy.pytorch.device_sampler import HISTORIES, DeviceSampler
from lmdeploy.pytorch.uploads import Uploads
from tests.kernels.device import NOT_BUILT, built_modules, host_module
from tests.kernels.test_sampling import Rule, draw, uniform

# Of a row: fields of SamplingParams, and `prompt`, `response`, `biases`, `forbidden` and `mask`.
Choice = dict[str, Any]
_PLAIN = {
    "is_greedy": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs": -1,
}  # fmt: skip


def has_penalties(rule: Choice) -> bool:
    """Return whether a choice needs to know the tokens so far."""
    return any(rule.get(name, _PLAIN[name]) != _PLAIN[name] for name in _PLAIN if name.endswith("penalty"))


def write_choices(
    rules: list[Choice], histories: list[int] | None = None, goes_on: bool = False
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the choices and their lists.

    ``rules``: one a row; row i is chosen from the step's row i. ``histories``: where each row's tokens are counted;
    None: where its number says. ``goes_on``: whether what was counted before is still right.
    """
    records = np.zeros(len(rules), _turbomind.choice_dtype)
    lists: list[int] = []
    for row, rule in enumerate(rules):
        record = records[row]
        for name, value in _PLAIN.items():
            record[name] = rule.get(name, value)
        record["row"] = row
        record["u"] = host_module().uniform(rule.get("seed", 0), rule.get("draw", 0))
        record["first_list"] = len(lists)
        biases = rule.get("biases", [])
        record["biases"] = len(biases)
        for token, bias in biases:
            lists += [token, int(np.float32(bias).view(np.int32))]
        for name, words in (("forbidden", "forbidden"), ("mask", "mask_words")):
            values = [int(value) for value in rule.get(name, [])]
            record[words] = len(values)
            lists += values
        record["history"] = record["counted"] = -1
        if has_penalties(rule):
            record["history"] = row if histories is None else histories[row]
            record["prompt_len"] = len(rule["prompt"])
            if not goes_on:
                tokens = [*rule["prompt"], *rule["response"]]
                record["counted"] = len(tokens)
                lists += tokens
    return records, np.array(lists, np.int32)


CPU = torch.device("cpu")
DEVICES = [CPU, *([torch.device("cuda")] if torch.cuda.is_available() else [])]
Floats = np.ndarray[Any, np.dtype[np.float32]]

needs_host = pytest.mark.skipif(not built_modules(), reason=NOT_BUILT)
pytestmark = [needs_host, pytest.mark.parametrize("device", DEVICES, ids=str)]


def random_rule(random: np.random.Generator, vocab: int) -> Choice:
    """Return settings of any kind, many of them at once."""

    def maybe(share: float, value: object, otherwise: object) -> Any:
        return value if random.random() < share else otherwise

    words = random.integers(-(2**31), 2**31, -(-vocab // 32)).astype(np.int32)
    return {
        "is_greedy": bool(random.random() < 0.1),
        "temperature": float(np.float32(random.choice([0.05, 0.3, 0.7, 1.0, 1.5, 5.0]))),
        "top_k": maybe(0.5, int(random.choice([1, 2, 20, 50, vocab - 1, vocab, 2 * vocab])), 0),
        "top_p": maybe(0.4, float(np.float32(random.choice([0.0, 0.1, 0.5, 0.9, 0.999]))), 1.0),
        "min_p": maybe(0.2, float(np.float32(random.choice([0.01, 0.1, 0.5, 1.0]))), 0.0),
        "top_n_sigma": maybe(0.1, float(np.float32(random.choice([0.5, 1.0, 3.0]))), 0.0),
        "seed": int(random.integers(0, 2**63)) * 2 + 1,
        "draw": int(random.integers(0, 2**33)),
        "repetition_penalty": maybe(0.2, float(np.float32(random.choice([0.8, 1.1, 2.0]))), 1.0),
        "presence_penalty": maybe(0.2, float(np.float32(random.choice([-1.0, 0.3, 2.0]))), 0.0),
        "frequency_penalty": maybe(0.2, float(np.float32(random.choice([-0.5, 0.17]))), 0.0),
        "prompt": random.integers(0, vocab, 12).tolist(),
        "response": random.integers(0, vocab, int(random.integers(0, 30))).tolist(),
        "biases": maybe(0.2, [(token, float(np.float32(random.normal() * 4))) for token in range(0, vocab, 7)], []),
        "forbidden": maybe(0.2, sorted({int(token) for token in random.integers(0, vocab, 9)}), []),
        "mask": maybe(0.2, words.tolist(), []),
    }  # fmt: skip


def random_logits(random: np.random.Generator, rows: int, vocab: int) -> Floats:
    """Return logits of rows of many kinds: with equal ones, with forbidden ones, flat, not numbers, infinite."""
    logits = (random.standard_normal((rows, vocab)) * random.choice([0.1, 3.0, 30.0], (rows, 1))).astype(np.float32)
    kind = random.integers(0, 40, rows)
    equal = (kind % 4 == 0)[:, None]
    logits = np.where(equal, (logits * 2).round() / 2, logits).astype(np.float32)
    logits[kind % 5 == 0, ::3] = -np.inf
    logits[kind == 1] = 0.25
    logits[kind == 2, vocab // 2] = np.nan
    logits[kind == 3] = -np.inf
    logits[kind == 6, vocab // 3] = np.inf
    logits[kind == 7, : vocab // 2] = -0.0
    logits[kind == 7, vocab // 2 :] = 0.0
    return logits


def choose(sampler: DeviceSampler, device: torch.device, logits: Floats, rules: list[Choice], **how: Any) -> list[int]:
    records, lists = write_choices(rules, **how)
    choices = sampler.stage(records, lists, Uploads(device))
    tokens: list[int] = sampler.choose(torch.from_numpy(logits).to(device), choices).tokens.tolist()
    return tokens


@pytest.mark.parametrize(("vocab", "rows"), [(33, 4000), (600, 5000), (5000, 1000)])
def test_tokens_are_those_of_the_engines_sampler(vocab: int, rows: int, device: torch.device) -> None:
    random = np.random.default_rng(vocab)
    sampler = DeviceSampler(vocab, device)
    differing = 0
    for first in range(0, rows, HISTORIES):
        count = min(HISTORIES, rows - first)
        logits = random_logits(random, count, vocab)
        rules = [random_rule(random, vocab) for _ in range(count)]
        native = choose(sampler, device, logits, rules)
        reference, adjusted = host_module().choose_on_host(rules, logits)
        for row in np.flatnonzero(np.array(native) != reference):
            rule = rules[row]
            settings = Rule(**{name: rule[name] for name in ("is_greedy", "temperature", "top_k", "top_p", "min_p")})
            _, is_sure = draw(adjusted[row], settings, uniform(rule["seed"], rule["draw"]))
            assert not is_sure, (native[row], reference[row], rule)
            differing += 1
    assert differing <= rows / 1000


def test_a_row_draws_the_same_alone_and_among_others(device: torch.device) -> None:
    random = np.random.default_rng(1)
    logits = random_logits(random, 40, 700)
    rules = [random_rule(random, 700) for _ in range(40)]
    together = choose(DeviceSampler(700, device), device, logits, rules)
    alone = DeviceSampler(700, device)
    assert together == [choose(alone, device, logits[row, None], [rules[row]])[0] for row in range(40)]


def test_what_was_chosen_counts_for_the_next_token_before_the_host_knows_it(device: torch.device) -> None:
    random = np.random.default_rng(2)
    vocab, rows = 50, 6
    sampler = DeviceSampler(vocab, device)
    rules: list[Choice] = [
        {
            "is_greedy": row % 2 == 0, "repetition_penalty": 1.5, "frequency_penalty": 0.7, "presence_penalty": 0.1,
            "prompt": random.integers(0, vocab, 5).tolist(), "response": [], "seed": row,
        }
        for row in range(rows)
    ]  # fmt: skip
    for step in range(12):
        logits = random.standard_normal((rows, vocab)).astype(np.float32)
        for rule in rules:
            rule["draw"] = step
        native = choose(sampler, device, logits, rules, histories=[7, 3, 5, 0, 63, 1], goes_on=step > 0)
        assert native == host_module().choose_on_host(rules, logits)[0]
        for rule, token in zip(rules, native, strict=True):
            rule["response"].append(token)


def test_tokens_outside_of_the_vocabulary_do_not_count(device: torch.device) -> None:
    rule = {"repetition_penalty": 100.0, "prompt": [9, 7, 400, -3], "response": []}
    logits = np.arange(1, 11, dtype=np.float32)[None]
    assert choose(DeviceSampler(10, device), device, logits, [rule]) == [8]


@pytest.mark.parametrize("top", [0, 1, 20])
def test_log_probabilities_are_the_engines(top: int, device: torch.device) -> None:
    random = np.random.default_rng(top)
    logits = random.standard_normal((5, 300)).astype(np.float32) * 4
    logits[1] = logits[1].round()  # equal ones
    logits[2, ::2] = -np.inf
    requested = [0, 2, 3]
    rules = [{"logprobs": top if row in requested else -1, "biases": [(5 + row, 100.0)]} for row in range(5)]
    chosen = DeviceSampler(300, device).choose(
        torch.from_numpy(logits).to(device), DeviceSampler(300, device).stage(*write_choices(rules), Uploads(device))
    )
    assert chosen.tokens.tolist() == [5, 6, 7, 8, 9]
    for entry, row in enumerate(requested):
        of_token, most_likely = host_module().host_log_probabilities(logits[row], 5 + row, top)
        assert chosen.logprobs[entry].item() == pytest.approx(of_token, rel=2.0**-22)
        assert chosen.top_tokens[entry].tolist() == [token for token, _ in most_likely]
        assert chosen.top_logprobs[entry].tolist() == pytest.approx([value for _, value in most_likely], rel=2.0**-22)
