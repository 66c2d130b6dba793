"""Offline inference: the class that ``lmdeploy.pipeline`` returns, for threads and asyncio."""

import asyncio
import itertools
import queue
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lmdeploy.messages import GenerationConfig, Response
from lmdeploy.model import ChatTemplate, ChatTemplateConfig, chat_template_for, template_of
from lmdeploy.model_metadata.sampling_defaults import AUTO, sampling_defaults
from lmdeploy.offline.chat_session import Session
from lmdeploy.offline.inputs import GenConfigs, as_batch, config_with, configs_for
from lmdeploy.offline.multimodal import MultimodalPreparer
from lmdeploy.offline.outputs import AsyncOutputs, Batch, Responses, by_prompt, progress_bar, response_of, too_long
from lmdeploy.offline.scoring_methods import ScoringMethods
from lmdeploy.offline.session_generator import SessionGenerator
from lmdeploy.offline.sessions import EngineSessions
from lmdeploy.paths import locate_model, located_adapters
from lmdeploy.prompts import PreparedPrompt, Prompt, PromptPreparer
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine, EngineOutput, SessionOptions
from lmdeploy.turbomind.engine_settings import EngineConfig, settings_of

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncEngine(ScoringMethods):
    """A loaded model, safe to use from several threads and event loops.

    Close it, or use it as a context manager.

    Parameters
    ----------
    model_path, backend_config, chat_template_config, max_log_len, generation_config, gen_config
        As in :func:`lmdeploy.pipeline`.
    model_name
        Name of the model; default: the name of the checkpoint's directory.

    Attributes
    ----------
    tokenizer, chat_template
        Tokenizer and chat template of the model.
    backend_config, backend
        Settings of the engine, and its name: ``turbomind`` or ``pytorch``.
    model_name, session_len, stop_words
        Name of the model, its maximum context length in tokens, and the stop strings of its chat template.
    sampling_defaults
        Sampling parameters that the checkpoint recommends; may be empty.
    """

    backend: str

    def __init__(
        self,
        model_path: str = "",
        backend_config: EngineConfig | Mapping[str, Any] | None = None,
        chat_template_config: ChatTemplateConfig | None = None,
        max_log_len: int | None = None,
        model_name: str | None = None,
        backend: str | None = None,
        generation_config: str = AUTO,
        gen_config: GenerationConfig | None = None,
    ) -> None:
        settings = settings_of(backend_config)
        self._gen_config = config_with(gen_config, {}, {}) if gen_config is not None else None
        directory = str(locate_model(model_path, settings.get("revision"), settings.get("download_dir")))
        self.backend_config = backend_config
        self.engine = Engine(directory, backend_config, backend)
        self.backend = self.engine.directory.backend
        self.tokenizer = Tokenizer(str(self.engine.directory.path))
        self.sampling_defaults = sampling_defaults(generation_config, self.engine.directory.path)
        self.chat_template = chat_template_for(directory, chat_template_config, self.tokenizer)
        self.model_name = model_name or self.engine.directory.spec.model_name
        checkpoint = self.engine.directory.vision_checkpoint
        self._preparer = (
            PromptPreparer(self.tokenizer, self.chat_template, max_log_len=max_log_len)
            if checkpoint is None
            else MultimodalPreparer(checkpoint, self.tokenizer, self.chat_template, self.session_len, max_log_len)
        )
        self._preparer.adapter_templates.add_all(located_adapters(settings.get("adapters")))
        self._sessions = EngineSessions(self.engine, self._preparer)
        # Above the ids that users choose.
        self._session_ids = itertools.count(2**32)

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def session_len(self) -> int:
        """Maximum context length in tokens."""
        return self.engine.session_len

    @property
    def stop_words(self) -> list[str]:
        """Stop strings of the chat template."""
        return self.chat_template.stop_words

    def close(self) -> None:
        """Cancel running requests and free the model."""
        self.engine.close()

    def __call__(
        self,
        prompts: str | Sequence[Any],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: str | None = None,
        use_tqdm: bool = False,
        *,
        chat_template_config: ChatTemplateConfig | None = None,
        **fields: Any,
    ) -> Any:
        """Generate responses to a prompt or a batch of prompts.

        Parameters
        ----------
        prompts
            A text; ``(text, image)`` or ``(text, [image, ...])`` for vision-language models, where an image is a URL, a
            data URL, a path or a ``PIL.Image``; a conversation as a list of OpenAI messages; or a list of any of these.
        gen_config
            Generation config for all prompts, or one per prompt; default: the pipeline's.
        do_preprocess
            False: use texts as prompts, without the chat template.
        adapter_name
            Name of the LoRA adapter; None: the base model.
        use_tqdm
            Show a progress bar.
        chat_template_config
            Chat template for these prompts; None: the pipeline's.
        fields
            Fields of ``GenerationConfig`` by name, which override ``gen_config``; ``request_output_len`` is accepted
            for ``max_new_tokens``.

        Returns
        -------
        Response or list
            The response to a single prompt, or a list in the order of the prompts. A response is a ``Response``, or a
            list of n with ``gen_config.n > 1``. A prompt that exceeds ``session_len`` gets an empty text and the
            finish reason ``length``.

        Raises
        ------
        ValueError
            If a prompt or setting is invalid; nothing has run then.
        RuntimeError
            If the engine fails on a request.
        """
        self._check_adapter(adapter_name)
        batch, is_single = as_batch(prompts)
        configs = self._configs(gen_config, len(batch), fields)
        template = template_of(chat_template_config)
        responses = Responses(configs)
        with progress_bar(len(batch), use_tqdm) as advance:
            for response in self._run(batch, configs, do_preprocess, False, adapter_name, template):
                advance(responses.add(response))
        return responses.ordered(is_single)

    batch_infer = __call__

    async def async_batch_infer(
        self,
        prompts: str | Sequence[Any],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: str | None = None,
        **fields: Any,
    ) -> Any:
        """Generate like ``__call__``, without blocking the event loop."""
        self._check_adapter(adapter_name)
        batch, is_single = as_batch(prompts)
        configs = self._configs(gen_config, len(batch), fields)
        responses = Responses(configs)
        prepared = await asyncio.to_thread(lambda: self._prepared(batch, do_preprocess, adapter_name))
        outputs = AsyncOutputs()
        requests = Batch(self.engine, outputs.put, self._session_ids, stream=False, adapter_name=adapter_name)
        try:
            for index, (prompt, config) in enumerate(zip(prepared, configs, strict=True)):
                responses.add(*requests.submit(index, prompt, config))
            while requests.is_open:
                responses.add(requests.response(await outputs.get()))
        finally:
            requests.cancel()
        return responses.ordered(is_single)

    def stream_infer(
        self,
        prompts: str | Sequence[Any],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: str | None = None,
        stream_response: bool = True,
        **fields: Any,
    ) -> Iterator[Response]:
        """Stream the chunks of all responses, interleaved.

        ``Response.index`` is the index of the prompt, ``Response.choice`` the index among its n responses. Without
        ``stream_response`` a chunk is a complete response. Other arguments and errors are those of ``__call__``.
        Closing the iterator early cancels the remaining requests.
        """
        self._check_adapter(adapter_name)
        batch, _ = as_batch(prompts)
        configs = self._configs(gen_config, len(batch), fields)
        return self._run(batch, configs, do_preprocess, stream_response, adapter_name)

    def infer(
        self,
        prompts: str | Sequence[Any],
        gen_config: GenConfigs = None,
        do_preprocess: bool = True,
        adapter_name: str | None = None,
        stream_response: bool = False,
        multiplex: bool = False,
        pbar: Any = None,
        **fields: Any,
    ) -> Iterator[Any]:
        """Yield an iterator of responses per prompt; with ``multiplex``, all responses as ``stream_infer`` does.

        Parameters
        ----------
        pbar
            A ``tqdm`` progress bar, which advances with each finished prompt.
        """
        self._check_adapter(adapter_name)
        batch, _ = as_batch(prompts)
        configs = self._configs(gen_config, len(batch), fields)
        responses = self._run(batch, configs, do_preprocess, stream_response, adapter_name)
        return by_prompt(responses, [config.n for config in configs], multiplex, pbar.update if pbar else None)

    async def generate(
        self,
        messages: Prompt | None,
        session_id: int,
        gen_config: GenerationConfig | None = None,
        tools: list[dict[str, Any]] | None = None,
        stream_response: bool = True,
        sequence_start: bool = True,
        sequence_end: bool = True,
        step: int = 0,
        do_preprocess: bool = True,
        adapter_name: str | None = None,
        skip_stop_tokens: bool = True,
        rewind_stop_tokens: bool = False,
        input_ids: Sequence[int] | None = None,
        stop: bool = False,
        chat_template_config: ChatTemplateConfig | None = None,
        **fields: Any,
    ) -> AsyncGenerator[Response, None]:
        """Generate one turn of a session, whose tokens the engine keeps between turns.

        Parameters
        ----------
        messages
            A text or conversation; in later turns only the new messages. None with ``input_ids``.
        session_id
            Session id chosen by the caller, >= 0.
        gen_config
            Generation config.
        tools
            OpenAI tools, in the first turn of a session.
        stream_response
            False: yield the complete response at once.
        sequence_start, sequence_end
            Whether the session starts with this turn (replacing one of the same id), and ends with it.
        step
            First truncate the session to this many tokens; 0: keep all.
        do_preprocess
            False: use a text as the prompt, without the chat template.
        adapter_name
            Name of the LoRA adapter; None: the base model.
        skip_stop_tokens, rewind_stop_tokens
            Only True and False are supported: the token that ends a response is not part of it, and stays in the
            session.
        input_ids
            Token ids, instead of ``messages``.
        stop
            True: stop the session's running response and generate nothing.
        chat_template_config
            Chat template for this turn; None: the pipeline's.
        fields
            Fields of ``GenerationConfig`` by name, as in ``__call__``.

        Yields
        ------
        Response
            Chunks of the response; a single empty one with finish reason ``length`` if the prompt exceeds
            ``session_len``. Closing the generator early cancels the request; the tokens generated so far stay in the
            session.

        Raises
        ------
        ValueError
            If the prompt or a setting is invalid, or the session is unknown or busy.
        RuntimeError
            If the engine fails on the request.
        """
        self._check_adapter(adapter_name)
        if not skip_stop_tokens or rewind_stop_tokens:
            raise ValueError(
                "skip_stop_tokens must be True and rewind_stop_tokens False: the token that ends a response is not "
                "part of it, and stays in the session"
            )
        if type(stop) is not bool:
            raise ValueError(f"stop must be True or False, got {stop!r}; strings that end the response are stop_words")
        if stop:
            await self.stop_session(session_id)
            yield Response("", 0, 0, "cancelled", session_id=session_id)
            return
        [config] = self._configs(gen_config, 1, fields)
        if bool(messages) == (input_ids is not None):
            raise ValueError(f"messages or input_ids must be given, got {'both' if messages else 'neither'}")
        if input_ids is not None:
            prompt = PreparedPrompt(list(input_ids), [])
        else:
            prompt = await asyncio.to_thread(
                self._sessions.prepare,
                session_id,
                messages or "",
                sequence_start,
                do_preprocess,
                tools,
                adapter_name,
                template_of(chat_template_config),
            )
        if len(prompt.ids) >= self.session_len:
            yield too_long(prompt, session_id=session_id)
            return
        options = SessionOptions(session_id, sequence_start, sequence_end, step or -1)
        outputs = SessionGenerator(self._sessions, session_id).generate(
            prompt, config, options, stream=stream_response, adapter_name=adapter_name
        )
        try:
            async for output in outputs:
                yield response_of(output, session_id=session_id)
        finally:
            await outputs.aclose()

    async def get_generator(self, stop: bool, session_id: int) -> SessionGenerator:
        """Return the generator of a session, which works on token ids.

        Parameters
        ----------
        stop
            True: to stop or end the session. False: first wait until the session is idle.
        session_id
            Session id.
        """
        generator = SessionGenerator(self._sessions, session_id)
        if not stop:
            await generator.wait_idle()
        return generator

    async def stop_session(self, session_id: int) -> None:
        """Stop the running response of a session, if any; its tokens stay in the session."""
        await (await self.get_generator(True, session_id)).async_cancel()

    async def end_session(self, session_id: int) -> None:
        """Delete a session, after its running response, if any."""
        await (await self.get_generator(True, session_id)).async_end()

    def session(self, gen_config: GenerationConfig | None = None, adapter_name: str | None = None) -> Session:
        """Return a new conversation: call it once per turn and close it, or use it as a context manager.

        Parameters
        ----------
        gen_config
            Default generation config of its turns.
        adapter_name
            The LoRA adapter that answers; None: none.
        """
        self._check_adapter(adapter_name)
        return Session(
            self._sessions,
            next(self._session_ids),
            gen_config or self._gen_config,
            adapter_name,
            sampling_defaults=self.sampling_defaults,
        )

    def chat(
        self,
        prompt: Prompt,
        session: Session | None = None,
        gen_config: GenerationConfig | None = None,
        *,
        do_preprocess: bool = True,
        stream_response: bool = False,
        **fields: Any,
    ) -> Session:
        """Generate one turn of a conversation.

        Parameters
        ----------
        prompt
            The user message, optionally with images, or a list of OpenAI messages.
        session
            Return value of an earlier call, to continue that conversation; None: a new conversation.
        gen_config
            Generation config.
        do_preprocess
            False: use a text as the prompt, without the chat template.
        stream_response
            True: the session's ``generator`` yields the chunks of the response.
        fields
            Fields of ``GenerationConfig`` by name, as in ``__call__``.

        Returns
        -------
        Session
            Its ``response`` is the response, its ``history`` all turns so far; see ``Session``. Closing it frees its
            cache blocks.

        Raises
        ------
        ValueError, RuntimeError
            As ``Session``.
        """
        session = session or self.session()
        config = self._configs(gen_config, 1, fields)[0] if gen_config or fields else None
        session(prompt, config, stream_response=stream_response, do_preprocess=do_preprocess)
        return session

    def prepare(
        self,
        prompt: Prompt,
        do_preprocess: bool = True,
        tools: list[dict[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        adapter_name: str | None = None,
    ) -> PreparedPrompt:
        """Apply the chat template and the tokenizer; return the token ids and stop words.

        Parameters
        ----------
        prompt, do_preprocess, adapter_name
            As in ``__call__``.
        tools, template_options
            OpenAI tools and further variables for the chat template.

        Raises
        ------
        ValueError
            If the prompt is invalid.
        """
        return self._preparer.prepare(
            prompt, do_preprocess, tools, template_options=template_options, adapter_name=adapter_name
        )

    def prepare_inputs(self, prompts: str | Sequence[Any]) -> dict[str, Any]:
        """Return a dict of ``prompts`` as a list and the ``input_ids`` of each."""
        batch, _ = as_batch(prompts)
        return {"prompts": list(batch), "input_ids": [self.prepare(prompt).ids for prompt in batch]}

    def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter; see :meth:`lmdeploy.turbomind.engine.Engine.load_adapter`.

        Prompts for the adapter use the chat template in its directory, if it has one.
        """
        self.engine.load_adapter(name, path)
        try:
            self._preparer.adapter_templates.add(name, locate_model(path))
        except ValueError:
            self.engine.unload_adapter(name)
            raise

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter; its running requests finish, later ones are refused."""
        self.engine.unload_adapter(name)
        self._preparer.adapter_templates.drop(name)

    def _check_adapter(self, adapter_name: str | None) -> None:
        if adapter_name is None:
            return
        known = self.engine.adapters()
        if adapter_name not in known:
            raise ValueError(
                f"adapter_name must be one of adapters ({', '.join(known) or 'none'}), got {adapter_name!r}"
            )

    def _configs(self, gen_config: GenConfigs, count: int, fields: Mapping[str, Any]) -> list[GenerationConfig]:
        given = self._gen_config if gen_config is None else gen_config
        return configs_for(given, count, fields, self.sampling_defaults)

    def _prepared(
        self,
        batch: Sequence[Prompt],
        do_preprocess: bool,
        adapter_name: str | None,
        template: ChatTemplate | None = None,
    ) -> list[PreparedPrompt]:
        return [
            self._preparer.prepare(prompt, do_preprocess, adapter_name=adapter_name, template=template)
            for prompt in batch
        ]

    def _run(
        self,
        batch: Sequence[Prompt],
        configs: list[GenerationConfig],
        do_preprocess: bool,
        stream: bool,
        adapter_name: str | None = None,
        template: ChatTemplate | None = None,
    ) -> Iterator[Response]:
        prepared = self._prepared(batch, do_preprocess, adapter_name, template)
        outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
        requests = Batch(self.engine, outputs.put, self._session_ids, stream, adapter_name)
        try:
            for index, (prompt, config) in enumerate(zip(prepared, configs, strict=True)):
                yield from requests.submit(index, prompt, config)
            while requests.is_open:
                yield requests.response(outputs.get())
        finally:
            requests.cancel()
