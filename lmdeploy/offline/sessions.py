"""Sessions of the engine, seen from Python: which are busy, what they hold, and how a turn is started."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from lmdeploy.messages import GenerationConfig
from lmdeploy.prompts import PreparedPrompt
from lmdeploy.sessions import HeldSessions
from lmdeploy.turbomind.engine import Engine, EngineOutput, SessionOptions


class SessionStates:
    """What is known here of the engine's sessions. Safe to use from any thread.

    Attributes
    ----------
    held : HeldSessions
        What the sessions hold.
    """

    def __init__(self) -> None:
        self.held = HeldSessions()
        self._lock = threading.Lock()
        self._running: dict[int, Future[None]] = {}  # guarded by _lock

    def begin(self, session_id: int, is_first: bool) -> "Future[None]":
        """Note that the session, which may begin with it, runs a request; return what is done when it has ended."""
        ended: Future[None] = Future()
        with self._lock:
            is_busy = session_id in self._running  # then the engine refuses this request
            if not is_busy:
                self._running[session_id] = ended
        if is_first and not is_busy:
            self.held.forget(session_id)
        return ended

    def finish(self, session_id: int, ended: "Future[None]") -> None:
        """Note that a request has ended."""
        with self._lock:
            if self._running.get(session_id) is ended:
                del self._running[session_id]
        ended.set_result(None)

    def running(self, session_id: int) -> "Future[None] | None":
        """Return what is done when the session's running request has ended; None if nothing runs."""
        with self._lock:
            return self._running.get(session_id)


@dataclass(frozen=True)
class Turn:
    """A request of a session: its number, and what is done when it has ended."""

    request: int
    ended: "Future[None]"


def start_turn(
    engine: Engine,
    states: SessionStates,
    options: SessionOptions,
    prompt: PreparedPrompt,
    gen_config: GenerationConfig,
    on_output: Callable[[EngineOutput], None],
    *,
    stream: bool,
) -> Turn:
    """Start a turn of a session.

    Parameters
    ----------
    engine, states
        Where the session lives, and what is known of it.
    options
        Which session, whether it begins and ends here, and where it goes on.
    prompt, gen_config, stream
        What to generate from, and how.
    on_output
        Gets the outputs, on the engine's delivery thread.

    Raises
    ------
    ValueError
        If the request is bad.
    RuntimeError
        If the engine is closed or has failed.
    """
    ended = states.begin(options.session_id, options.start)

    def deliver(output: EngineOutput) -> None:
        if output.is_final:
            if options.end:
                states.held.forget(options.session_id)
            elif output.finish_reason != "error":
                states.held.add(
                    options.session_id,
                    prompt.rounds,
                    is_first=options.start,
                    is_turn_closed=output.finish_reason == "stop",
                )
            states.finish(options.session_id, ended)
        on_output(output)

    try:
        request = engine.submit(
            prompt.ids, gen_config, deliver, stop_words=prompt.stop_words, stream=stream, session=options
        )
    except BaseException:
        states.finish(options.session_id, ended)
        raise
    return Turn(request, ended)
