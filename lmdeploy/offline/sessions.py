"""Sessions of the engine, seen from Python: which are busy, which answers were cut off, and how a turn is started."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from lmdeploy.messages import GenerationConfig
from lmdeploy.offline.prompts import PreparedPrompt
from lmdeploy.turbomind.engine import Engine, EngineOutput, SessionOptions


class SessionStates:
    """What is known here of the engine's sessions. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, Future[None]] = {}  # guarded by _lock
        self._cut_off: set[int] = set()  # guarded by _lock
        self._rounds: dict[int, int] = {}  # how often the user spoke in a session; guarded by _lock

    def begin(self, session_id: int, is_first: bool = False) -> "Future[None]":
        """Note that the session, which may begin with it, runs a request; return what is done when it has ended."""
        ended: Future[None] = Future()
        with self._lock:
            if is_first and session_id not in self._running:
                self._rounds.pop(session_id, None)
            self._running.setdefault(session_id, ended)  # a second request is refused by the engine
        return ended

    def finish(self, session_id: int, ended: "Future[None]", finish_reason: str, rounds: int, *, is_over: bool) -> None:
        """Note why a request ended, how often the user spoke in it, and whether that was the session's end."""
        with self._lock:
            if self._running.get(session_id) is ended:
                del self._running[session_id]
            if is_over or finish_reason == "stop":
                self._cut_off.discard(session_id)
            elif finish_reason != "error":
                self._cut_off.add(session_id)
            if is_over:
                self._rounds.pop(session_id, None)
            elif finish_reason != "error":
                self._rounds[session_id] = self._rounds.get(session_id, 0) + rounds
        ended.set_result(None)

    def running(self, session_id: int) -> "Future[None] | None":
        """Return what is done when the session's running request has ended; None if nothing runs."""
        with self._lock:
            return self._running.get(session_id)

    def is_turn_closed(self, session_id: int) -> bool:
        """Return whether the model ended the session's last answer itself, as far as is known."""
        with self._lock:
            return session_id not in self._cut_off

    def rounds_held(self, session_id: int) -> int:
        """Return how many rounds of user and model the session holds, as far as is known: at least one."""
        with self._lock:
            return max(1, self._rounds.get(session_id, 1))

    def forget(self, session_id: int) -> None:
        """Note that the session is over."""
        with self._lock:
            self._cut_off.discard(session_id)
            self._rounds.pop(session_id, None)


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
            states.finish(options.session_id, ended, output.finish_reason, prompt.rounds, is_over=options.end)
        on_output(output)

    try:
        request = engine.submit(
            prompt.ids, gen_config, deliver, stop_words=prompt.stop_words, stream=stream, session=options
        )
    except BaseException:
        states.finish(options.session_id, ended, "error", 0, is_over=False)
        raise
    return Turn(request, ended)
