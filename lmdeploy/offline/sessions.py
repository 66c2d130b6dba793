"""Sessions of the engine, seen from Python: which are busy, what they hold, and how a turn is prepared and started."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from lmdeploy.messages import GenerationConfig
from lmdeploy.prompts import PreparedPrompt, Prompt, PromptPreparer
from lmdeploy.sessions import SessionStates
from lmdeploy.templates.base import ChatTemplate
from lmdeploy.turbomind.engine import Engine, EngineOutput, SessionOptions


@dataclass(frozen=True)
class Turn:
    """Request of a session: its number, and its completion callback."""

    request: int
    ended: "Future[None]"


class EngineSessions:
    """The sessions of one engine. Safe to use from any thread."""

    def __init__(self, engine: Engine, preparer: PromptPreparer) -> None:
        self.engine = engine
        self._preparer = preparer
        self._open = SessionStates()
        self._lock = threading.Lock()
        self._running: dict[int, Future[None]] = {}  # guarded by _lock

    def prepare(
        self,
        session_id: int,
        prompt: Prompt,
        is_first: bool,
        do_preprocess: bool = True,
        tools: list[dict[str, Any]] | None = None,
        adapter_name: str | None = None,
        template: ChatTemplate | None = None,
    ) -> PreparedPrompt:
        """Return the engine's input for a turn; after the first, only for its new part.

        Raises `ValueError` if the prompt is malformed.
        """
        state = None if is_first else self._open.get(session_id)
        return self._preparer.prepare(prompt, do_preprocess, tools, state, adapter_name=adapter_name, template=template)

    def start(
        self,
        options: SessionOptions,
        prompt: PreparedPrompt,
        gen_config: GenerationConfig,
        on_output: Callable[[EngineOutput], None],  # called on the engine's delivery thread
        *,
        stream: bool,
        adapter_name: str | None = None,  # the LoRA adapter that answers, the same in each turn; None: none
    ) -> Turn:
        """Start a turn.

        Raises `ValueError` if the request is bad, and `RuntimeError` if the engine is closed or has failed.
        """
        ended = self._begin(options)

        def deliver(output: EngineOutput) -> None:
            if output.is_final:
                self._record(options, prompt.rounds, output)
                self._finish(options.session_id, ended)
            on_output(output)

        try:
            request = self.engine.submit(
                prompt.ids,
                gen_config,
                deliver,
                stop_words=prompt.stop_words,
                stream=stream,
                session=options,
                images=prompt.rows,
                adapter_name=adapter_name,
            )
        except BaseException:
            self._finish(options.session_id, ended)
            raise
        return Turn(request, ended)

    def running(self, session_id: int) -> "Future[None] | None":
        """Return a future of the end of the session's running request; None if nothing runs."""
        with self._lock:
            return self._running.get(session_id)

    def end(self, session_id: int, on_output: Callable[[EngineOutput], None] = lambda output: None) -> None:
        """End a session in the engine, after cancelling its running request.

        Raises `RuntimeError` if the engine is closed or has failed.
        """
        self.engine.end_session(session_id, on_output)
        self._open.evict(session_id)

    def _begin(self, options: SessionOptions) -> "Future[None]":
        ended: Future[None] = Future()
        with self._lock:
            is_busy = options.session_id in self._running  # then the engine refuses this request
            if not is_busy:
                self._running[options.session_id] = ended
        if options.start and not is_busy:
            self._open.evict(options.session_id)
        return ended

    def _finish(self, session_id: int, ended: "Future[None]") -> None:
        with self._lock:
            if self._running.get(session_id) is ended:
                del self._running[session_id]
        ended.set_result(None)

    def _record(self, options: SessionOptions, rounds: int, output: EngineOutput) -> None:
        """Record what the session holds after a turn."""
        if options.end:
            self._open.evict(options.session_id)
        elif output.finish_reason != "error":
            closed = output.finish_reason == "stop"
            self._open.add(options.session_id, rounds, is_first=options.start, is_turn_closed=closed)
