"""Conversion of engine outputs to responses, and their delivery to threads and event loops."""

import asyncio
import contextlib
import dataclasses
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lmdeploy.messages import GenerationConfig, Response
from lmdeploy.prompts import PreparedPrompt
from lmdeploy.turbomind.engine import Engine, EngineOutput, OutputCallback

if TYPE_CHECKING:
    import numpy as np
    import torch

_OPEN = 512  # requests of `only_outputs` in the engine at a time


class AsyncOutputs:
    """Queue of outputs from the engine's delivery thread to the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[EngineOutput] = asyncio.Queue()

    def put(self, output: EngineOutput) -> None:
        """Add an output; from any thread, never blocks."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, output)

    async def get(self) -> EngineOutput:
        """Return the next output."""
        return await self._queue.get()


class Batch:
    """Requests of one call: submits them, and converts their outputs to responses."""

    def __init__(
        self,
        engine: Engine,
        on_output: Callable[[EngineOutput], None],  # called on the engine's delivery thread; hand each to ``response``
        session_ids: Iterator[int],  # gives each prompt its own id
        stream: bool,  # whether responses come in pieces
        adapter_name: str | None = None,  # the LoRA adapter that answers; None: none
    ) -> None:
        self._engine = engine
        self._on_output = on_output
        self._session_ids = session_ids
        self._stream = stream
        self._adapter_name = adapter_name
        self._origins: dict[int, tuple[int, int]] = {}  # of a request: index of the prompt, its session id

    @property
    def is_open(self) -> bool:
        """Whether more outputs will come."""
        return bool(self._origins)

    def submit(self, index: int, prompt: PreparedPrompt, config: GenerationConfig) -> list[Response]:
        """Start a prompt of the batch; return its responses if there is nothing to run: it exceeds the session length.

        Raises `ValueError` if the request is bad.
        """
        session_id = next(self._session_ids)
        if len(prompt.ids) >= self._engine.session_len:
            return [too_long(prompt, index, choice, session_id) for choice in range(config.n)]
        request = self._engine.submit(
            prompt.ids,
            config,
            self._on_output,
            stop_words=prompt.stop_words,
            stream=self._stream,
            images=prompt.rows,
            adapter_name=self._adapter_name,
        )
        self._origins[request] = index, session_id
        return []

    def response(self, output: EngineOutput) -> Response:
        """Return the response for an engine output; raises as :func:`raise_error`."""
        index, session_id = self._origins[output.request]
        if output.is_final:
            del self._origins[output.request]
        return response_of(output, index, session_id)

    def cancel(self) -> None:
        """Cancel what still runs."""
        for request in self._origins:
            self._engine.cancel(request)


class Responses:
    """The whole responses of one call, by prompt and choice."""

    def __init__(self, configs: Sequence[GenerationConfig]) -> None:  # one a prompt
        self._choices = [config.n for config in configs]
        self._responses: dict[tuple[int, int], Response] = {}

    def add(self, *responses: Response) -> int:
        """Add answers; return how many prompts they complete."""
        completed = 0
        for response in responses:
            self._responses[response.index, response.choice] = response
            choices = range(self._choices[response.index])
            completed += all((response.index, choice) in self._responses for choice in choices)
        return completed

    def ordered(self, is_single: bool) -> Any:
        """Return a response a prompt, a list where n > 1; for a single prompt that alone."""
        ordered = [
            self._responses[index, 0] if n == 1 else [self._responses[index, choice] for choice in range(n)]
            for index, n in enumerate(self._choices)
        ]
        return ordered[0] if is_single else ordered


@contextlib.contextmanager
def progress_bar(total: int, is_shown: bool) -> Iterator[Callable[[int], object]]:
    """Show how many prompts are answered; what it yields takes the number of new ones."""
    if not is_shown:
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit="prompt") as bar:
        yield bar.update


def raise_error(output: EngineOutput) -> None:
    """Raise what an output reports: `ValueError` if the request was bad, `RuntimeError` if the engine failed on it."""
    if output.finish_reason == "error":
        raise (ValueError if output.is_bad_request else RuntimeError)(output.error)


def only_outputs(engine: Engine, submit: Iterable[Callable[[OutputCallback], int]]) -> list[EngineOutput]:
    """Return the only output of each request, in order; raise as :func:`raise_error`, and cancel the others then.

    ``submit``: each starts a request, and returns its number.
    """
    outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
    open_requests: set[int] = set()
    found: dict[int, EngineOutput] = {}

    def take() -> None:
        output = outputs.get()
        open_requests.discard(output.request)
        raise_error(output)
        found[output.request] = output

    requests = []
    try:
        for start in submit:
            if len(open_requests) == _OPEN:
                take()
            requests.append(start(outputs.put))
            open_requests.add(requests[-1])
        while open_requests:
            take()
    finally:
        for request in open_requests:
            engine.cancel(request)
    return [found[request] for request in requests]


def too_long(prompt: PreparedPrompt, index: int = 0, choice: int = 0, session_id: int | None = None) -> Response:
    """Return the response to a prompt that does not fit the session length."""
    return Response("", 0, len(prompt.ids), "length", index=index, choice=choice, session_id=session_id)


def response_of(output: EngineOutput, index: int = 0, session_id: int | None = None) -> Response:
    """Return an engine output as the response to a prompt of a batch, or to a turn of a session.

    Raises as :func:`raise_error`.
    """
    raise_error(output)
    reason: Literal["stop", "length", "cancelled"] | None = output.finish_reason or None  # type: ignore[assignment]
    return Response(
        output.text,
        output.generate_token_len,
        output.input_token_len,
        reason,
        token_ids=output.token_ids,
        logprobs=output.logprobs,
        logits=_tensor(output.logits),
        last_hidden_state=_tensor(output.last_hidden_state),
        index=index,
        choice=output.index,
        history_token_len=output.history_token_len,
        session_id=session_id,
        stop_reason=output.stop_reason,
    )


def joined(pieces: Sequence[Response]) -> Response:
    """Join the pieces of one response; logits and hidden states are dropped where there are several pieces."""
    if len(pieces) == 1:
        return pieces[0]
    return dataclasses.replace(
        pieces[-1],
        text="".join(piece.text for piece in pieces),
        token_ids=[token for piece in pieces for token in piece.token_ids],
        logprobs=[entry for piece in pieces for entry in piece.logprobs or ()] or None,
        logits=None,
        last_hidden_state=None,
    )


def by_prompt(
    responses: Iterator[Response], choices: Sequence[int], multiplex: bool, advance: Callable[[int], object] | None
) -> Iterator[Any]:
    """Yield for each prompt an iterator of its responses, which come interleaved; with ``multiplex`` them as they come.

    ``choices``: how many responses each prompt gets. ``advance``: called with 1 for each prompt that is answered.
    """
    left = list(choices)
    waiting: list[deque[Response]] = [deque() for _ in choices]

    def take() -> Response:
        response = next(responses)
        if response.finish_reason is not None:
            left[response.index] -= 1
            if left[response.index] == 0 and advance is not None:
                advance(1)
        return response

    def of(index: int) -> Iterator[Response]:
        while waiting[index] or left[index]:
            while not waiting[index]:
                response = take()
                waiting[response.index].append(response)
            yield waiting[index].popleft()

    if not multiplex:
        yield from map(of, range(len(choices)))
        return
    while any(left):
        yield take()


def _tensor(rows: "np.ndarray[Any, Any] | None") -> "torch.Tensor | None":
    if rows is None:
        return None
    import torch

    return torch.from_numpy(rows)
