"""Token sampler in PyTorch, next to the logits, so that only token ids return to the host.

A row's token depends on its logits and its choice alone, whatever is chosen alongside: weights are integers
(`_weights`), whose sums are exact in any order. Settings, their order and the random numbers are those of the engine's
sampler (backend_cpp/engine/generation/sampler.h, kernels/sampling.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lmdeploy import _turbomind
from lmdeploy.pytorch.uploads import Uploads

Array = np.ndarray[Any, Any]

HISTORIES = 64  # sequences whose tokens are counted at once (kMaxWorkerHistories)
_LIMITS = ("temperature", "top_k", "top_p", "min_p", "top_n_sigma")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
KNOWN_FIELDS = (*_LIMITS, *_PENALTIES)  # the engine samples on the host where a request has others
_SETTINGS = ("u", *_LIMITS)
_ROWS_AT_ONCE = 64  # bounds workspace: four numbers of 8 bytes for each logit
_NEGATIVE_INFINITY = float("-inf")


@dataclass
class Choices:
    """A step's choices, where the sampler reads them."""

    count: int  # rows of logits
    arrays: dict[str, torch.Tensor]  # ``[entries]`` each, by name
    # How many rows are drawn from in the order of ids, and in the order of logits without and with a top-k
    by_id: int
    nucleus: int
    top_k: int
    max_top_k: int  # of any row
    has_sigma: bool
    # Rows whose log probabilities are asked for, and how many most likely tokens of them at most
    reported_rows: Array
    max_logprobs: int

    def has(self, name: str) -> bool:
        """Return whether any row has entries of that name."""
        return len(self.arrays[name]) > 0


@dataclass
class Chosen:
    """Sampled tokens, on the model's device.

    ``tokens``: ``[count]`` int64; -1: the logits hold NaN or allow no token. ``logprobs``: ``[reported]`` float32, of
    the chosen tokens under the model's own distribution. ``top_tokens``, ``top_logprobs``: ``[reported, most_top]``
    int64 and float32, the most likely first, the lower id first among equals.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor
    top_tokens: torch.Tensor
    top_logprobs: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        """Return all of them."""
        return [self.tokens, self.logprobs, self.top_tokens, self.top_logprobs]


class DeviceSampler:
    """Chooses the tokens of steps."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        # Logits of a row
        self._vocab_size, self._device = vocab_size, device
        # 2^44 for a weight of 1, less where the sum of a whole row would not fit.
        self._one = 2.0 ** min(44, 62 - (vocab_size - 1).bit_length())
        self._ids = torch.arange(vocab_size, device=device)
        self._bits = torch.arange(32, dtype=torch.int32, device=device)
        self._histories: _Histories | None = None  # made when first needed

    def stage(self, choices: Array, lists: Array, uploads: Uploads) -> Choices:
        """Return choices as the device reads them.

        ``choices``: ``[count]`` of ``lmdeploy._turbomind.choice_dtype``. ``lists``: int32, what the choices point at.
        ``uploads``: brings arrays to the device.
        """
        draws = np.flatnonzero(choices["is_greedy"] == 0)
        has_top_k = (choices["top_k"][draws] > 0) & (choices["top_k"][draws] < self._vocab_size)
        is_nucleus = ~has_top_k & (choices["top_p"][draws] < 1)
        groups = [draws[~has_top_k & ~is_nucleus], draws[is_nucleus], draws[has_top_k]]
        drawn = choices[np.concatenate(groups)]
        reported = np.flatnonzero(choices["logprobs"] >= 0)
        arrays = {"drawn": np.concatenate(groups), "reported": reported}
        for name in _SETTINGS:
            arrays[name] = drawn[name]
        arrays |= self._list_arrays(choices, lists)
        by_id, nucleus, top_k = (len(group) for group in groups)
        return Choices(
            len(choices),
            uploads.send(arrays),
            by_id,
            nucleus,
            top_k,
            max_top_k=int(drawn["top_k"][len(draws) - top_k :].max(initial=0)),
            has_sigma=bool((drawn["top_n_sigma"] > 0).any()),
            reported_rows=reported,
            max_logprobs=int(choices["logprobs"].max(initial=0)),
        )

    def choose(self, logits: torch.Tensor, choices: Choices) -> Chosen:
        """Return the tokens.

        ``logits``: ``[count, vocab]`` float32; left as it is. ``choices``: of `stage`.
        """
        adjusted = self._adjust(logits, choices)
        largest, best = adjusted.max(dim=1)
        is_sound = ~(largest.isnan() | (largest == _NEGATIVE_INFINITY))
        tokens = best
        if choices.has("drawn"):
            tokens = best.index_copy(0, choices.arrays["drawn"], self._draw(adjusted, largest, best, choices))
        tokens = torch.where(is_sound, tokens, -1)
        if self._histories is not None and choices.has("penalized"):
            self._histories.record(tokens[choices.arrays["penalized"]], choices.arrays)
        return self._report(logits, tokens, choices)

    # ---- penalties, biases, what is forbidden ----

    def _list_arrays(self, choices: Array, lists: Array) -> dict[str, Array]:
        """Return the lists of the choices, each entry with its row."""
        biases: list[tuple[int, Array]] = []
        forbidden: list[tuple[int, Array]] = []
        masks: list[tuple[int, Array]] = []
        counted: list[tuple[int, Array, int]] = []
        fields = ("first_list", "biases", "forbidden", "mask_words", "counted", "prompt_len", "history")
        for row, numbers in enumerate(zip(*(choices[name].tolist() for name in fields), strict=True)):
            first, bias_count, forbidden_count, words, known, prompt_len, history = numbers
            parts = np.cumsum([first, 2 * bias_count, forbidden_count, words, max(known, 0)])
            if bias_count:
                biases.append((row, lists[parts[0] : parts[1]].reshape(-1, 2)))
            if forbidden_count:
                forbidden.append((row, lists[parts[1] : parts[2]]))
            if words:
                masks.append((row, lists[parts[2] : parts[3]]))
            if known >= 0:
                counted.append((history, lists[parts[3] : parts[4]], prompt_len))
        penalized = np.flatnonzero(choices["history"] >= 0)
        bias_pairs = np.concatenate([pairs for _, pairs in biases]) if biases else np.zeros((0, 2), np.int32)
        responses = [(index, tokens[prompt_len:]) for index, tokens, prompt_len in counted]
        seen = [(index, tokens) for index, tokens, _ in counted]
        return {
            "bias_rows": _rows_of(biases), "bias_tokens": bias_pairs[:, 0].astype(np.int64),
            "biases": np.ascontiguousarray(bias_pairs[:, 1]).view(np.float32),
            "forbidden_rows": _rows_of(forbidden), "forbidden": _values_of(forbidden),
            "masked": np.array([row for row, _ in masks], np.int64),
            "masks": np.concatenate([words for _, words in masks]) if masks else np.zeros(0, np.int32),
            "penalized": penalized, "histories": choices["history"][penalized].astype(np.int64),
            **{name: choices[name][penalized] for name in _PENALTIES},
            "new": np.array([index for index, _ in seen], np.int64),
            **dict(zip(("seen_places", "seen"), self._known(seen), strict=True)),
            **dict(zip(("counted_places", "counted"), self._known(responses), strict=True)),
        }  # fmt: skip

    def _known(self, entries: list[tuple[int, Array]]) -> tuple[Array, Array]:
        """Return indices and tokens without those that are not in the vocabulary, as those of images may be."""
        indices, tokens = _rows_of(entries), _values_of(entries)
        is_known = (tokens >= 0) & (tokens < self._vocab_size)
        return indices[is_known], tokens[is_known]

    def _adjust(self, logits: torch.Tensor, choices: Choices) -> torch.Tensor:
        arrays = choices.arrays
        if not any(choices.has(name) for name in ("penalized", "biases", "forbidden", "masked")):
            return logits
        logits = logits.clone()
        if choices.has("penalized"):
            if self._histories is None:
                self._histories = _Histories(self._vocab_size, self._device)
            self._histories.begin(arrays)
            logits[arrays["penalized"]] = self._histories.penalize(logits[arrays["penalized"]], arrays)
        if choices.has("biases"):
            logits.index_put_((arrays["bias_rows"], arrays["bias_tokens"]), arrays["biases"], accumulate=True)
        if choices.has("forbidden"):
            logits[arrays["forbidden_rows"], arrays["forbidden"]] = _NEGATIVE_INFINITY
        if choices.has("masked"):
            rows = arrays["masked"]
            words = arrays["masks"].view(len(rows), -1, 1)
            is_allowed = (words >> self._bits & 1).flatten(1)[:, : self._vocab_size] != 0
            logits[rows] = logits[rows].masked_fill(~is_allowed, _NEGATIVE_INFINITY)
        return logits

    # ---- draws ----

    def _draw(self, logits: torch.Tensor, largest: torch.Tensor, best: torch.Tensor, choices: Choices) -> torch.Tensor:
        """Return tokens ``[drawn]``, those of rows without limits first, then of top-p alone, then of top-k."""
        drawn: list[torch.Tensor] = []
        first = 0
        for group, count in enumerate((choices.by_id, choices.nucleus, choices.top_k)):
            for begin in range(first, first + count, _ROWS_AT_ONCE):
                part = slice(begin, min(begin + _ROWS_AT_ONCE, first + count))
                settings = {name: choices.arrays[name][part, None] for name in _SETTINGS}
                rows = choices.arrays["drawn"][part]
                row_logits, top = logits[rows], largest[rows][:, None]
                if choices.has_sigma:
                    row_logits = _apply_top_n_sigma(row_logits, top, settings["top_n_sigma"])
                if group == 0:
                    tokens = self._draw_by_id(row_logits, top, best[rows], settings)
                else:
                    width = choices.max_top_k if group == 2 else self._vocab_size
                    tokens = self._draw_by_rank(row_logits, top, best[rows], settings, width)
                # Where the largest is infinite, it has all the weight.
                drawn.append(torch.where(top[:, 0].isfinite(), tokens, best[rows]))
            first += count
        return torch.cat(drawn)

    def _weights(self, exact: torch.Tensor) -> torch.Tensor:
        """Return weights, of which the largest is 1, as integers: their sums do not depend on any order."""
        return (exact.nan_to_num(0) * self._one).to(torch.int64)

    def _draw_by_id(
        self, logits: torch.Tensor, top: torch.Tensor, best: torch.Tensor, settings: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        exact = _exact_weights(logits, top, settings["temperature"])
        weights = self._weights(torch.where(exact >= settings["min_p"], exact, 0))
        index = _index_of_draw(weights, settings["u"])
        return torch.where(index < self._vocab_size, index, best)

    def _draw_by_rank(
        self,
        logits: torch.Tensor,
        top: torch.Tensor,
        best: torch.Tensor,
        settings: dict[str, torch.Tensor],
        width: int,
    ) -> torch.Tensor:
        """Draw from the most likely ``width`` tokens, or with a smaller top-k from up to that number."""
        has_top_k = width < self._vocab_size
        order = _order_of(logits, self._ids, width)
        candidates = logits.gather(1, order)
        if has_top_k:
            exact = ((candidates.double() - top) / settings["temperature"].double()).exp()
            exact = torch.where(self._ids[:width] < settings["top_k"], exact, 0)
        else:
            exact = _exact_weights(candidates, top, settings["temperature"])
        weights = self._weights(exact)
        sums = weights.cumsum(1)
        share = settings["top_p"].double() * sums[:, -1:].double()
        is_kept = ((sums - weights).double() < share) | (settings["top_p"] >= 1)
        is_kept &= exact >= settings["min_p"]
        index = _index_of_draw(torch.where(is_kept, weights, 0), settings["u"])
        token = order.gather(1, index.clamp_max(width - 1)[:, None])[:, 0]
        return torch.where(index < width, token, best)

    # ---- log probabilities ----

    def _report(self, logits: torch.Tensor, tokens: torch.Tensor, choices: Choices) -> Chosen:
        rows = choices.arrays["reported"]
        if not len(choices.reported_rows):
            empty = logits.new_empty(0)
            return Chosen(tokens, empty, tokens.new_empty(0), empty)
        selected = logits[rows]
        exact = selected.double()
        normalizer = exact.logsumexp(1, keepdim=True)
        chosen = exact.gather(1, tokens[rows].clamp_min(0)[:, None])
        top_tokens = _order_of(selected, self._ids, choices.max_logprobs)
        top = exact.gather(1, top_tokens)
        return Chosen(tokens, (chosen - normalizer).float()[:, 0], top_tokens, (top - normalizer).float())


def agrees_with_cpu(device: torch.device) -> bool:
    """Return whether tokens are chosen on a device as on the CPU: a row of each kind, from random logits."""
    random = np.random.default_rng(0)
    vocab = 1000
    kinds = [
        (1, 0, 1.0, 0.0),
        (0, 0, 1.0, 0.0),
        (0, 0, 1.0, 0.05),
        (0, 0, 0.8, 0.0),
        (0, 40, 1.0, 0.0),
        (0, 40, 0.9, 0.1),
    ]
    choices = np.zeros(len(kinds), _turbomind.choice_dtype)
    for name in ("temperature", "repetition_penalty"):
        choices[name] = 1
    for name, values in zip(("is_greedy", "top_k", "top_p", "min_p"), zip(*kinds, strict=True), strict=True):
        choices[name] = values
    choices["u"] = random.random(len(kinds))
    choices["logprobs"] = choices["history"] = choices["counted"] = -1
    logits = torch.from_numpy((random.standard_normal((len(kinds), vocab)) * 3).round(1).astype(np.float32))

    def tokens_on(device: torch.device) -> list[int]:
        sampler = DeviceSampler(vocab, device)
        staged = sampler.stage(choices, np.zeros(0, np.int32), Uploads(device))
        tokens: list[int] = sampler.choose(logits.to(device), staged).tokens.tolist()
        return tokens

    return tokens_on(device) == tokens_on(torch.device("cpu"))


class _Histories:
    """Which tokens sequences have, and how often their responses have them, for penalties."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._seen = torch.zeros(HISTORIES, vocab_size, dtype=torch.bool, device=device)
        self._counts = torch.zeros(HISTORIES, vocab_size, dtype=torch.int32, device=device)

    def begin(self, arrays: dict[str, torch.Tensor]) -> None:
        """Count the tokens of sequences that come new."""
        if len(arrays["new"]) == 0:
            return
        self._seen[arrays["new"]] = False
        self._counts[arrays["new"]] = 0
        self._seen[arrays["seen_places"], arrays["seen"]] = True
        ones = torch.ones_like(arrays["counted"], dtype=torch.int32)
        self._counts.index_put_((arrays["counted_places"], arrays["counted"]), ones, accumulate=True)

    def penalize(self, logits: torch.Tensor, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the logits ``[penalized, vocab]`` of the next tokens (backend_cpp/engine/generation/sampler.h)."""
        repetition, presence, frequency = (arrays[name][:, None] for name in _PENALTIES)
        seen, counts = self._seen[arrays["histories"]], self._counts[arrays["histories"]]
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(seen, repeated, logits)
        return torch.where(counts > 0, logits - (presence + frequency * counts), logits)

    def record(self, tokens: torch.Tensor, arrays: dict[str, torch.Tensor]) -> None:
        """Count the chosen tokens ``[penalized]``."""
        is_there, token = tokens >= 0, tokens.clamp_min(0)
        self._seen[arrays["histories"], token] |= is_there
        self._counts[arrays["histories"], token] += is_there.int()


def _rows_of(entries: list[tuple[int, Array]]) -> Array:
    """Return the row of each value."""
    return np.repeat([row for row, _ in entries], [len(values) for _, values in entries]).astype(np.int64)


def _values_of(entries: list[tuple[int, Array]]) -> Array:
    return np.concatenate([np.zeros(0, np.int64), *(values for _, values in entries)])


def _exact_weights(logits: torch.Tensor, top: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return ``exp((logits - top) / temperature)`` in float64, its exponent rounded to float32 as the engine does."""
    return ((logits - top) * (1 / temperature)).double().exp()


def _apply_top_n_sigma(logits: torch.Tensor, top: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Forbid logits more than ``sigma`` standard deviations below the largest (Tang et al., 2024); 0: none."""
    is_counted = logits.isfinite()
    distances = torch.where(is_counted, logits.double() - top, 0)
    count = is_counted.sum(1, keepdim=True)
    mean = distances.sum(1, keepdim=True) / count
    deviation = ((distances * distances).sum(1, keepdim=True) / count - mean * mean).clamp_min(0).sqrt()
    bound = top - sigma * deviation
    return torch.where((sigma > 0) & (logits < bound), _NEGATIVE_INFINITY, logits)


def _order_of(logits: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ``count`` most likely tokens ``[rows, count]`` in order, the lower id first among equals.

    A logit and its id are one integer each, so no two are equal: bits of floats that are not negative are in their
    order, those of negative ones in the reverse.
    """
    bits = (logits + 0.0).view(torch.int32)  # the sum makes -0 0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys = ordered << 32 | (0xFFFFFFFF - ids)
    if count == len(ids):
        return keys.sort(1, descending=True).indices
    return keys.topk(count, dim=1).indices


def _index_of_draw(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return the first place ``[rows]`` whose sum of weights up to it is above ``u`` times the sum of all."""
    sums = weights.cumsum(1)
    target = (u * sums[:, -1:].double()).floor().long()
    return (sums <= target).sum(1)
