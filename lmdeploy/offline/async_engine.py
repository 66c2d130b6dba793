"""A model in this process: the class behind ``lmdeploy.pipeline``, for threads and for asyncio."""

import asyncio
import contextlib
import functools
import itertools
import queue
from collections.abc import AsyncGenerator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, Response, TurbomindEngineConfig
from lmdeploy.model import ChatTemplateConfig, chat_template_for
from lmdeploy.offline.chat_session import Session
from lmdeploy.offline.inputs import GenConfigs, as_batch, configs_for
from lmdeploy.offline.outputs import Answers, AsyncOutputs, Batch, progress_bar, response_of
from lmdeploy.offline.scoring import TokenIds, cross_entropies
from lmdeploy.offline.session_generator import SessionGenerator
from lmdeploy.offline.sessions import SessionStates, start_turn
from lmdeploy.paths import locate_model
from lmdeploy.prompts import PreparedPrompt, Prompt, PromptPreparer
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine, EngineOutput, EngineUnavailable, SessionOptions
from lmdeploy.turbomind.supported import refuse_unsupported_engine


class AsyncEngine:
    """A loaded model. Safe to use from many threads and event loops at once.

    Close it, or use it as a context manager.

    Parameters
    ----------
    model_path, backend_config, chat_template_config, max_log_len
        As in :func:`lmdeploy.pipeline`.
    """

    def __init__(
        self,
        model_path: str = "",
        backend_config: TurbomindEngineConfig | PytorchEngineConfig | None = None,
        chat_template_config: ChatTemplateConfig | None = None,
        max_log_len: int | None = None,
    ) -> None:
        config = backend_config or TurbomindEngineConfig()
        refuse_unsupported_engine(config)
        assert isinstance(config, TurbomindEngineConfig)
        directory = str(locate_model(model_path, config.revision, config.download_dir))
        self.engine = Engine(directory, config)
        self.tokenizer = Tokenizer(str(self.engine.directory.path))
        self.chat_template = chat_template_for(directory, chat_template_config, self.tokenizer)
        self._preparer = PromptPreparer(self.tokenizer, self.chat_template, max_log_len=max_log_len)
        self._states = SessionStates()
        # Above what users choose themselves.
        self._session_ids = itertools.count(2**32)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is running and free the model."""
        self.engine.close()

    def __call__(
        self,
        prompts: str | Sequence[Any],
        gen_config: GenConfigs = None,
        *,
        do_preprocess: bool = True,
        use_tqdm: bool = False,
    ) -> Any:
        """Answer a prompt, or a batch of them.

        Parameters
        ----------
        prompts
            A text; a list of texts; one conversation, a list of OpenAI messages; or a list of conversations.
        gen_config
            How to generate: one for all prompts, or one each.
        do_preprocess
            False: texts are finished prompts, and no chat template is applied.
        use_tqdm
            Show a progress bar.

        Returns
        -------
        Response or list
            The answer to one prompt, else a list in the order of the prompts. An answer is a ``Response``; with
            ``gen_config.n > 1``, a list of n. A prompt that does not fit the session length gets an empty text and the
            finish reason ``length``.

        Raises
        ------
        ValueError
            If a prompt or setting is malformed; nothing has run then.
        RuntimeError
            If the engine failed on a request.
        """
        batch, is_single = as_batch(prompts)
        configs = configs_for(gen_config, len(batch))
        answers = Answers(configs)
        with progress_bar(len(batch), use_tqdm) as advance:
            for response in self._run(batch, configs, do_preprocess, stream=False):
                advance(answers.add(response))
        return answers.ordered(is_single)

    batch_infer = __call__

    async def async_batch_infer(
        self, prompts: str | Sequence[Any], gen_config: GenConfigs = None, *, do_preprocess: bool = True
    ) -> Any:
        """Answer a prompt or a batch like calling the engine, without blocking the event loop."""
        batch, is_single = as_batch(prompts)
        configs = configs_for(gen_config, len(batch))
        answers = Answers(configs)
        prepared = await asyncio.to_thread(lambda: [self._preparer.prepare(prompt, do_preprocess) for prompt in batch])
        outputs = AsyncOutputs()
        requests = Batch(self.engine, outputs.put, stream=False)
        try:
            for index, (prompt, config) in enumerate(zip(prepared, configs, strict=True)):
                answers.add(*requests.submit(index, prompt, config))
            while requests.is_open:
                answers.add(requests.response(await outputs.get()))
        finally:
            requests.cancel()
        return answers.ordered(is_single)

    def stream_infer(
        self, prompts: str | Sequence[Any], gen_config: GenConfigs = None, *, do_preprocess: bool = True
    ) -> Iterator[Response]:
        """Yield the pieces of every answer as they come, those of a batch interleaved.

        ``Response.index`` tells the prompt, ``Response.choice`` which of its n answers. Arguments and errors are those
        of calling the engine. Leaving the iterator early cancels what still runs.
        """
        batch, _ = as_batch(prompts)
        return self._run(batch, configs_for(gen_config, len(batch)), do_preprocess, stream=True)

    async def generate(
        self,
        messages: Prompt,
        session_id: int,
        gen_config: GenerationConfig | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        stream_response: bool = True,
        sequence_start: bool = True,
        sequence_end: bool = True,
        step: int = -1,
        do_preprocess: bool = True,
        input_ids: Sequence[int] | None = None,
    ) -> AsyncGenerator[Response, None]:
        """Answer one turn of a session, whose tokens the engine keeps between turns.

        Parameters
        ----------
        messages
            A text or conversation; when the session goes on, only what is new in it.
        session_id
            The caller's name for the session, >= 0.
        gen_config
            How to generate.
        tools
            OpenAI tool descriptions, with the beginning of a session.
        stream_response
            False: one response with the whole answer.
        sequence_start, sequence_end
            Whether the session begins with this turn (an old one of that id is forgotten), and ends with it.
        step
            Keep only so many of the session's tokens first; negative: all.
        do_preprocess
            False: a text is used as it is, without a chat template.
        input_ids
            Token ids to use in place of ``messages``.

        Yields
        ------
        Response
            One of no text and finish reason ``length`` if the prompt does not fit the session length. Leaving early
            cancels the request; what it has generated stays in the session.

        Raises
        ------
        ValueError
            If the prompt or a setting is malformed, or the session is unknown, or busy with another request.
        RuntimeError
            If the engine failed on the request.
        """
        if input_ids is not None:
            prompt = PreparedPrompt(list(input_ids), [])
        else:
            prompt = await asyncio.to_thread(
                self._prepare_turn, session_id, messages, sequence_start, do_preprocess, tools
            )
        if len(prompt.ids) >= self.engine.session_len:
            yield Response("", 0, len(prompt.ids), "length")
            return
        outputs = SessionGenerator(self.engine, self._states, session_id).async_stream_infer(
            prompt.ids,
            gen_config or GenerationConfig(),
            stop_words=prompt.stop_words,
            sequence_start=sequence_start,
            sequence_end=sequence_end,
            step=step,
            stream_output=stream_response,
        )
        try:
            async for output in outputs:
                yield response_of(output)
        finally:
            await outputs.aclose()

    async def get_generator(self, stop: bool, session_id: int) -> SessionGenerator:
        """Return a session's access to the engine by token ids.

        Parameters
        ----------
        stop
            Whether it is for stopping or ending the session. If not, wait until the session runs nothing.
        session_id
            The session.
        """
        generator = SessionGenerator(self.engine, self._states, session_id)
        if not stop:
            await generator.wait_idle()
        return generator

    async def stop_session(self, session_id: int) -> None:
        """Stop a session's running answer, if there is one; what there is of it stays in the session."""
        await (await self.get_generator(True, session_id)).async_cancel()

    async def end_session(self, session_id: int) -> None:
        """Make the engine forget a session, after its running answer if there is one."""
        await (await self.get_generator(True, session_id)).async_end()

    def chat(
        self,
        prompt: Prompt,
        session: Session | None = None,
        gen_config: GenerationConfig | None = None,
        *,
        do_preprocess: bool = True,
    ) -> Session:
        """Answer one turn of a conversation.

        Parameters
        ----------
        prompt
            What the user says; a list of OpenAI messages may begin with a system message.
        session
            What an earlier call returned, to go on with it; None begins a conversation.
        gen_config
            How to generate.
        do_preprocess
            False: a text is used as it is, without a chat template.

        Returns
        -------
        Session
            Its ``response`` is the answer, its ``history`` all turns so far. An answer of no text and finish reason
            ``length`` says that the conversation has become too long; it is not in the history. Close the session to
            free its place in the cache early.

        Raises
        ------
        ValueError, RuntimeError
            As ``generate``.
        """
        session = session or self._new_session()
        session.ask(prompt, gen_config or GenerationConfig(), do_preprocess)
        return session

    def prepare(self, prompt: Prompt, do_preprocess: bool = True) -> PreparedPrompt:
        """Return a prompt's token ids and the stop words of its chat template."""
        return self._preparer.prepare(prompt, do_preprocess)

    def get_ppl(self, input_ids: TokenIds) -> list[float]:
        """Return how well the model predicts texts: the mean cross-entropy of each one's tokens, without exponent.

        Parameters
        ----------
        input_ids
            The tokens of a text, of several texts, or what a ``transformers`` tokenizer returns. A text may be as long
            as the session length; long ones are computed in chunks.

        Returns
        -------
        list of float
            In nats a token, of the second token on; one number a text.

        Raises
        ------
        ValueError
            If a text has less than two tokens or exceeds the session length.
        RuntimeError
            If the engine failed on a request.
        """
        return cross_entropies(self.engine, input_ids)

    def _run(
        self, batch: Sequence[Prompt], configs: list[GenerationConfig], do_preprocess: bool, stream: bool
    ) -> Iterator[Response]:
        prepared = [self._preparer.prepare(prompt, do_preprocess) for prompt in batch]
        outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
        requests = Batch(self.engine, outputs.put, stream)
        try:
            for index, (prompt, config) in enumerate(zip(prepared, configs, strict=True)):
                yield from requests.submit(index, prompt, config)
            while requests.is_open:
                yield requests.response(outputs.get())
        finally:
            requests.cancel()

    def _new_session(self) -> Session:
        session_id = next(self._session_ids)

        def end() -> None:
            with contextlib.suppress(EngineUnavailable):  # closed: nothing is left to forget
                self.engine.end_session(session_id)
            self._states.held.forget(session_id)

        return Session(session_id, functools.partial(self._answer_turn, session_id), end)

    def _answer_turn(
        self, session_id: int, prompt: Prompt, is_first: bool, gen_config: GenerationConfig, do_preprocess: bool
    ) -> Response:
        if gen_config.n != 1:
            raise ValueError(f"n must be 1 in a conversation, got {gen_config.n}")
        prepared = self._prepare_turn(session_id, prompt, is_first, do_preprocess)
        if len(prepared.ids) >= self.engine.session_len:
            return Response("", 0, len(prepared.ids), "length")
        outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
        options = SessionOptions(session_id, is_first, False)
        turn = start_turn(self.engine, self._states, options, prepared, gen_config, outputs.put, stream=False)
        try:
            return response_of(outputs.get())
        except KeyboardInterrupt:
            self.engine.cancel(turn.request)
            raise

    def _prepare_turn(
        self,
        session_id: int,
        prompt: Prompt,
        is_first: bool,
        do_preprocess: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> PreparedPrompt:
        held = None if is_first else self._states.held.get(session_id)
        return self._preparer.prepare(prompt, do_preprocess, tools, held)
