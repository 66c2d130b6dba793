"""How tokens are chosen, written as the engine sends it to its workers (backend_cpp/model/worker/worker_choices.h)."""

from typing import Any

import numpy as np

from lmdeploy import _turbomind
from tests.kernels.device import host_module

# Of a row: fields of SamplingParams, and `prompt`, `response`, `biases`, `forbidden` and `mask`.
Rule = dict[str, Any]

_PLAIN = {
    "is_greedy": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "top_n_sigma": 0.0,
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs": -1,
}  # fmt: skip


def has_penalties(rule: Rule) -> bool:
    """Return whether a choice needs to know the tokens so far."""
    return any(rule.get(name, _PLAIN[name]) != _PLAIN[name] for name in _PLAIN if name.endswith("penalty"))


def write_choices(
    rules: list[Rule], histories: list[int] | None = None, goes_on: bool = False
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the choices and their lists.

    Parameters
    ----------
    rules
        One a row; row i is chosen from the step's row i.
    histories
        Where each row's tokens are counted; None: where its number says.
    goes_on
        Whether what was counted before is still right.
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
