"""One session's access to the engine, from asyncio: token ids in, outputs out."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future

from lmdeploy.messages import GenerationConfig
from lmdeploy.offline.outputs import AsyncOutputs, raise_error
from lmdeploy.offline.sessions import EngineSessions
from lmdeploy.prompts import PreparedPrompt
from lmdeploy.turbomind.engine import EngineOutput, SessionOptions


class SessionGenerator:
    """Result of ``AsyncEngine.get_generator``.

    Parameters
    ----------
    sessions
        The engine's.
    session_id
        The session.
    """

    def __init__(self, sessions: EngineSessions, session_id: int) -> None:
        self._sessions = sessions
        self.session_id = session_id

    async def async_stream_infer(
        self,
        input_ids: Sequence[int],
        gen_config: GenerationConfig,
        *,
        stop_words: Sequence[str] = (),
        sequence_start: bool = True,
        sequence_end: bool = True,
        step: int = -1,
        stream_output: bool = True,
    ) -> AsyncGenerator[EngineOutput, None]:
        """Run one request and yield its outputs; leaving early cancels it.

        Parameters
        ----------
        input_ids
            The tokens of this turn alone.
        gen_config, stop_words
            How to generate, and strings that end the response alongside those in it.
        sequence_start, sequence_end
            Whether the session begins with this request (an old one of that id is forgotten), and ends with it.
        step
            Keep only this many of the session's tokens first; negative: all.
        stream_output
            False: one output a response.

        Raises
        ------
        ValueError
            If the request is bad: among others when the session is unknown, or is running another one.
        RuntimeError
            If the engine failed on it.
        """
        prompt = PreparedPrompt(list(input_ids), list(stop_words))
        options = SessionOptions(self.session_id, sequence_start, sequence_end, step)
        async with contextlib.aclosing(self.generate(prompt, gen_config, options, stream=stream_output)) as outputs:
            async for output in outputs:
                yield output

    async def generate(
        self,
        prompt: PreparedPrompt,
        gen_config: GenerationConfig,
        options: SessionOptions,
        *,
        stream: bool,
        adapter_name: str | None = None,
    ) -> AsyncGenerator[EngineOutput, None]:
        """Run one turn and yield its outputs; as ``async_stream_infer``, of a prompt that knows its rounds."""
        outputs = AsyncOutputs()
        turn = self._sessions.start(options, prompt, gen_config, outputs.put, stream=stream, adapter_name=adapter_name)
        is_final = False
        try:
            while not is_final:
                output = await outputs.get()
                raise_error(output)
                is_final = output.is_final
                yield output
        finally:
            if not turn.ended.done():
                self._sessions.engine.cancel(turn.request)
                await _done(turn.ended)  # until then the session is busy

    async def wait_idle(self) -> None:
        """Return when the session runs nothing."""
        while (ended := self._sessions.running(self.session_id)) is not None:
            await _done(ended)

    async def async_cancel(self) -> None:
        """Stop the session's running request, if there is one; what it has generated stays in the session."""
        outputs = AsyncOutputs()
        self._sessions.engine.stop_session(self.session_id, outputs.put)
        await outputs.get()

    async def async_end(self) -> None:
        """End the session in the engine, if it knows it, when its running request has ended."""
        await self.wait_idle()
        outputs = AsyncOutputs()
        self._sessions.end(self.session_id, outputs.put)
        await outputs.get()


async def _done(future: "Future[None]") -> None:
    """Wait for a future that others wait for too: when this task is cancelled, it is not."""
    await asyncio.shield(asyncio.wrap_future(future))
