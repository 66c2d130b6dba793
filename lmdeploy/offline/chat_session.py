"""A conversation over several turns, as ``AsyncEngine.chat`` returns it."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from lmdeploy.messages import GenerationConfig, Response
from lmdeploy.prompts import Prompt, as_messages

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
        response = self._go_on(prompt, gen_config, do_preprocess) if self._is_held else None
        if response is None:
            response = self._answer(self._whole(prompt, do_preprocess), True, gen_config, do_preprocess)
        self.response = response
        if response.generate_token_len or response.finish_reason != "length":
            self._is_held = True
            self.history.append((prompt, response.text))
        return response

    def _go_on(self, prompt: Prompt, gen_config: GenerationConfig, do_preprocess: bool) -> Response | None:
        """Answer a turn whose beginning the engine holds; None if it refuses, as when it has forgotten the session."""
        try:
            return self._answer(prompt, False, gen_config, do_preprocess)
        except ValueError:
            return None

    def _whole(self, prompt: Prompt, do_preprocess: bool) -> Prompt:
        """Return the conversation up to and with ``prompt``."""
        if not self.history:
            return prompt
        if not do_preprocess:
            return "".join(f"{said}{answer}" for said, answer in self.history) + str(prompt)
        messages = []
        for said, answer in self.history:
            messages += [*as_messages(said), {"role": "assistant", "content": answer}]
        return [*messages, *as_messages(prompt)]

    def close(self) -> None:
        """Free its place in the engine; the history stays."""
        if self._is_held:
            self._is_held = False
            self._end()
