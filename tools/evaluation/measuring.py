"""One format, measured: the model is loaded once, scored on the texts, and asked the tasks.

The texts are short pieces of many kinds, written for this and printed nowhere else.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tools.bench.progress import ignore
from tools.evaluation.formats import Agreement, Format
from tools.evaluation.tasks import MOST_ANSWER_TOKENS, TASKS, questions, share_right

_MOST_TOKENS = 512  # of a piece of text
TEXTS = Path(__file__).with_name("texts.txt")
BETWEEN = "\n----\n"  # in the file


def read_pieces(path: Path = TEXTS) -> list[str]:
    """Return the pieces of a file, which a line of four dashes divides.

    Raises
    ------
    ValueError
        There is no text in it.
    """
    pieces = [piece.strip() for piece in path.read_text(encoding="utf-8").split(BETWEEN)]
    if not any(pieces):
        raise ValueError(f"{path} holds no text; expected pieces of text, a line of four dashes between them")
    return [piece for piece in pieces if piece]


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


@dataclass(frozen=True)
class Measured:
    """What was measured of a format; ``right`` is the share of right answers by task."""

    agreement: Agreement
    right: dict[str, float]


class Evaluation:
    """Formats of one model, one after the other; the first one measured is the reference.

    Parameters
    ----------
    pieces
        The texts.
    questions_a_task
        0: no tasks are asked.
    backend
        The engine: ``turbomind`` or ``pytorch``.
    """

    def __init__(
        self, pieces: Sequence[str], questions_a_task: int, backend: Literal["turbomind", "pytorch"] = "turbomind"
    ) -> None:
        self._backend = backend
        self._pieces = list(pieces)
        self._questions = questions_a_task
        self._texts: list[list[int]] = []
        self._reference: list[torch.Tensor] = []

    @property
    def reference(self) -> Agreement:
        """What the reference says of the texts."""
        return compare(self._texts, self._reference, self._reference)

    @property
    def steps(self) -> int:
        """How often `measure` reports: for the model, each text and each task."""
        return 1 + len(self._pieces) + (len(TASKS) if self._questions else 0)

    def measure(self, model_path: str, chosen: Format, advance: Callable[[], None] = ignore) -> Measured:
        """Load a model in a format and return what it says; ``advance`` is called after each step."""
        settings = {"cache_max_entry_count": 0.2, "session_len": 1024, **chosen.settings}
        with pipeline(model_path, backend=self._backend, **settings) as pipe:
            self._texts = self._texts or [pipe.tokenizer.encode(piece)[:_MOST_TOKENS] for piece in self._pieces]
            advance()
            scored, right = [], {}
            for ids in self._texts:
                scored.append(log_probabilities(pipe.get_logits(ids)[0], len(ids)))
                advance()
            self._reference = self._reference or scored
            for task in TASKS if self._questions else ():
                right[task] = self._ask(pipe, task)
                advance()
        return Measured(compare(self._texts, self._reference, scored), right)

    def _ask(self, pipe: AsyncEngine, task: str) -> float:
        asked = questions(task, self._questions, lambda text: len(pipe.tokenizer.encode(text, add_bos=False)))
        config = GenerationConfig(max_new_tokens=MOST_ANSWER_TOKENS, stop_words=["\n"])
        responses = pipe([one.prompt for one in asked], config, do_preprocess=False)
        return share_right(asked, [response.text for response in responses])
