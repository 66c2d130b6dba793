"""A conversation over several turns, as ``AsyncEngine.chat`` returns it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from lmdeploy.messages import GenerationConfig, Response
from lmdeploy.prompts import Prompt

# Prompt, whether it begins the session, how to generate, whether to apply the chat template.
AnswerTurn = Callable[[Prompt, bool, GenerationConfig, bool], Response]


class Session:
    """A conversation. One thread at a time.

    Parameters
    ----------
    session_id
        The engine's name for it.
    answer
        Runs one turn in the engine.
    end
        Makes the engine forget the session.

    Attributes
    ----------
    response : Response or None
        The latest answer.
    history : list of (prompt, str)
        What the user said and what was answered, turn by turn.
    """

    def __init__(self, session_id: int, answer: AnswerTurn, end: Callable[[], None]) -> None:
        self.session_id = session_id
        self.response: Response | None = None
        self.history: list[tuple[Prompt, str]] = []
        self._answer = answer
        self._end = end
        self._is_held = False  # by the engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "\n".join(f"USER: {prompt}\nASSISTANT: {answer}" for prompt, answer in self.history)

    def ask(self, prompt: Prompt, gen_config: GenerationConfig, do_preprocess: bool = True) -> Response:
        """Answer the next turn; see ``AsyncEngine.chat``."""
        response = self._answer(prompt, not self._is_held, gen_config, do_preprocess)
        self._is_held = True
        self.response = response
        self.history.append((prompt, response.text))
        return response

    def close(self) -> None:
        """Free its place in the engine; the history stays."""
        if self._is_held:
            self._is_held = False
            self._end()
