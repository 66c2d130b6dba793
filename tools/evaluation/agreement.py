"""How far one model's next tokens are from another's, over the same texts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Agreement:
    """Means over all places of all texts that have a next token.

    Attributes
    ----------
    perplexity
        exp of the mean cross-entropy of the token that follows.
    divergence
        Kullback-Leibler divergence from the reference's distribution of the next token, KL(reference || this), in
        nats a token; 0 for the reference itself (Kullback and Leibler, 1951).
    same_top
        Share of places where the most likely token is the reference's.
    places
        How many there were.
    """

    perplexity: float
    divergence: float
    same_top: float
    places: int


def log_probabilities(logits: torch.Tensor, length: int) -> torch.Tensor:
    """Return the log-probabilities ``[length - 1, vocab]`` of what follows each token of a text but its last.

    Parameters
    ----------
    logits
        ``[tokens, vocab]``, with rows for at least ``length`` tokens.
    length
        Tokens of the text.
    """
    return torch.log_softmax(logits[: length - 1].float(), dim=-1)


def compare(
    texts: Sequence[Sequence[int]], reference: Iterable[torch.Tensor], measured: Iterable[torch.Tensor]
) -> Agreement:
    """Return how far ``measured`` is from ``reference``.

    Parameters
    ----------
    texts
        Token ids, at least two a text.
    reference, measured
        For each text what :func:`log_probabilities` returns.
    """
    divergence = loss = 0.0
    same = places = 0
    for ids, wanted, got in zip(texts, reference, measured, strict=True):
        divergence += torch.sum(wanted.exp() * (wanted - got), dtype=torch.float64).item()
        loss -= got.gather(1, torch.tensor(ids[1:])[:, None]).sum(dtype=torch.float64).item()
        same += int((wanted.argmax(-1) == got.argmax(-1)).sum())
        places += len(ids) - 1
    return Agreement(math.exp(loss / places), divergence / places, same / places, places)
