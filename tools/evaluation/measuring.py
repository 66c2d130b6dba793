"""One format, measured: the model is loaded once, scored on the texts, and asked the tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tools.bench.progress import ignore
from tools.evaluation.agreement import Agreement, compare, log_probabilities
from tools.evaluation.formats import Format
from tools.evaluation.tasks import MOST_ANSWER_TOKENS, TASKS, questions, share_right
from tools.evaluation.texts import encoded

_MOST_TOKENS = 512  # of a piece of text


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
            self._texts = self._texts or encoded(pipe.tokenizer, self._pieces, _MOST_TOKENS)
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
