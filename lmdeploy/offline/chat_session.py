"""A conversation over several turns, as ``AsyncEngine.chat`` and ``AsyncEngine.session`` return it."""

import contextlib
import queue
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lmdeploy.messages import GenerationConfig, Response
from lmdeploy.offline.inputs import config_with
from lmdeploy.offline.outputs import joined, response_of
from lmdeploy.offline.sessions import EngineSessions
from lmdeploy.prompts import Prompt, as_messages
from lmdeploy.turbomind.engine import EngineOutput, EngineUnavailable, SessionOptions

if TYPE_CHECKING:
    from typing_extensions import Self


class Session:
    """A conversation, whose turns the engine keeps: none is computed again. One thread at a time.

    Call it for the next turn, close it to free its place in the engine.

    Parameters
    ----------
    sessions
        The engine's.
    session_id
        The engine's name for it.
    gen_config
        How to generate where a turn does not say; default: ``GenerationConfig()``.
    adapter_name
        The LoRA adapter that answers; None: none.
    sampling_defaults
        The model's (`lmdeploy.model_metadata.sampling_defaults`).

    Attributes
    ----------
    response : Response or None
        The latest response; while it is streamed, the one before.
    generator : iterator of Response or None
        The pieces of the latest response, if it is streamed.
    history : list of (prompt, str)
        What the user said and what was answered, turn by turn.
    """

    def __init__(
        self,
        sessions: EngineSessions,
        session_id: int,
        gen_config: GenerationConfig | None = None,
        adapter_name: str | None = None,
        *,
        sampling_defaults: Mapping[str, Any],
    ) -> None:
        self.session_id = session_id
        self.response: Response | None = None
        self.generator: Iterator[Response] | None = None
        self.adapter_name = adapter_name
        self.history: list[tuple[Prompt, str]] = []
        self._sessions = sessions
        self._gen_config = gen_config
        self._sampling_defaults = sampling_defaults
        self._is_open = False  # by the engine

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "\n".join(f"USER: {prompt}\nASSISTANT: {response}" for prompt, response in self.history)

    def __call__(
        self,
        prompt: Prompt,
        gen_config: GenerationConfig | None = None,
        stream_response: bool = True,
        do_preprocess: bool = True,
    ) -> Any:
        """Answer the next turn.

        Parameters
        ----------
        prompt
            What the user says; a list of OpenAI messages may begin with a system message.
        gen_config
            How to generate; default: as the session says.
        stream_response
            False: wait for the whole response.
        do_preprocess
            False: a text is used as it is, without a chat template.

        Returns
        -------
        iterator of Response, or Response
            The pieces of the response, or all of it. One of no text and finish reason ``length`` says that the
            conversation has become too long; it is not in the history. Leaving the iterator early stops the response;
            what there is of it stays in the conversation.

        Raises
        ------
        ValueError
            If the prompt or a setting is malformed.
        RuntimeError
            If the engine failed on the request.
        """
        config = config_with(gen_config or self._gen_config, {}, self._sampling_defaults)
        if config.n != 1:
            raise ValueError(f"n must be 1 in a conversation, got {config.n}")
        pieces = self._pieces(prompt, config, do_preprocess, stream_response)
        self.generator = pieces if stream_response else None
        if stream_response:
            return pieces
        [response] = pieces
        return response

    def close(self) -> None:
        """Free its place in the engine; the history stays."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(EngineUnavailable):  # closed: nothing is left to forget
                self._sessions.end(self.session_id)

    def _pieces(
        self, prompt: Prompt, gen_config: GenerationConfig, do_preprocess: bool, stream: bool
    ) -> Iterator[Response]:
        if self._is_open:
            try:
                yield from self._turn(prompt, prompt, gen_config, do_preprocess, stream, is_first=False)
                return
            except ValueError:  # before the first piece, as when the engine has forgotten the session
                pass
        whole = self._whole(prompt, do_preprocess)
        yield from self._turn(prompt, whole, gen_config, do_preprocess, stream, is_first=True)

    def _turn(
        self,
        message: Prompt,
        prompt: Prompt,
        gen_config: GenerationConfig,
        do_preprocess: bool,
        stream: bool,
        *,
        is_first: bool,
    ) -> Iterator[Response]:
        """Run what was said as a prompt that begins the session, or continues in it."""
        engine = self._sessions.engine
        prepared = self._sessions.prepare(
            self.session_id, prompt, is_first, do_preprocess, adapter_name=self.adapter_name
        )
        if len(prepared.ids) >= engine.session_len:
            self.response = Response("", 0, len(prepared.ids), "length", session_id=self.session_id)
            yield self.response
            return
        outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
        options = SessionOptions(self.session_id, start=is_first)
        turn = self._sessions.start(
            options, prepared, gen_config, outputs.put, stream=stream, adapter_name=self.adapter_name
        )
        pieces: list[Response] = []
        is_open = True
        try:
            while is_open:
                output = outputs.get()
                is_open = not output.is_final
                pieces.append(response_of(output, session_id=self.session_id))
                if not is_open:
                    self._record(message, pieces)
                yield pieces[-1]
        finally:
            if is_open:  # left early: what is there of the response is in the session
                engine.cancel(turn.request)
                while not pieces or pieces[-1].finish_reason is None:
                    pieces.append(response_of(outputs.get(), session_id=self.session_id))
                self._record(message, pieces)

    def _record(self, message: Prompt, pieces: list[Response]) -> None:
        self.response = joined(pieces)
        self.history.append((message, self.response.text))
        self._is_open = True

    def _whole(self, prompt: Prompt, do_preprocess: bool) -> Prompt:
        """Return the conversation up to and with ``prompt``."""
        if not self.history:
            return prompt
        if not do_preprocess:
            return "".join(f"{message}{response}" for message, response in self.history) + str(prompt)
        messages = []
        for message, response in self.history:
            messages += [*as_messages(message), {"role": "assistant", "content": response}]
        return [*messages, *as_messages(prompt)]
