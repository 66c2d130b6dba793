"""A model in this process: the class behind ``lmdeploy.pipeline``, for threads and for asyncio."""

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
from lmdeploy.offline.scoring import TokenIds, cross_entropies, prompt_logits
from lmdeploy.offline.session_generator import SessionGenerator
from lmdeploy.offline.sessions import EngineSessions
from lmdeploy.offline.texts import embed_texts, score_pairs, sparse_vectors, token_vectors
from lmdeploy.paths import locate_model
from lmdeploy.prompts import PreparedPrompt, Prompt, PromptPreparer
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.adapters import locate_adapter, located_adapters
from lmdeploy.turbomind.engine import Engine, EngineOutput, SessionOptions
from lmdeploy.turbomind.engine_settings import EngineConfig, settings_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from typing_extensions import Self


class AsyncEngine:
    """A loaded model. Safe to use from many threads and event loops at once.

    Close it, or use it as a context manager.

    Parameters
    ----------
    model_path, backend_config, chat_template_config, max_log_len, generation_config, gen_config
        As in :func:`lmdeploy.pipeline`.
    model_name
        The name shown to users; default: that of the checkpoint's folder.

    Attributes
    ----------
    tokenizer, chat_template
        The model's.
    backend_config, backend
        The engine's settings, and its kind: ``turbomind``.
    model_name, session_len, stop_words
        What the model is called, the most tokens of a conversation, and what ends its turn.
    sampling_defaults
        The sampling parameters that the checkpoint recommends; empty: none.
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
        # Above what users choose themselves.
        self._session_ids = itertools.count(2**32)

    def __enter__(self) -> "Self":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def session_len(self) -> int:
        """Most tokens of a conversation."""
        return self.engine.session_len

    @property
    def stop_words(self) -> list[str]:
        """The strings of the chat template that end the model's turn."""
        return self.chat_template.stop_words

    def close(self) -> None:
        """Cancel what is running and free the model."""
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
        """Answer a prompt, or a batch of them.

        Parameters
        ----------
        prompts
            A text; ``(text, image)`` or ``(text, [image, ...])``, for a model that sees, an image being a URL, a
            data URL, a path or a ``PIL.Image``; one conversation, a list of OpenAI messages; or a list of any of these.
        gen_config
            How to generate: one for all prompts, or one each; default: as ``pipeline`` was given.
        do_preprocess
            False: texts are finished prompts, and no chat template is applied.
        adapter_name
            The LoRA adapter that answers; None: none.
        use_tqdm
            Show a progress bar.
        chat_template_config
            The chat template of these prompts alone; None: the pipeline's.
        fields
            Fields of ``GenerationConfig`` by name, which go before those of ``gen_config``; ``max_new_tokens`` may be
            called by its older name ``request_output_len``.

        Returns
        -------
        Response or list
            The response to one prompt, else a list in the order of the prompts. A response is a ``Response``; with
            ``gen_config.n > 1``, a list of n. A prompt that does not fit the session length gets an empty text and the
            finish reason ``length``.

        Raises
        ------
        ValueError
            If a prompt or setting is malformed; nothing has run then.
        RuntimeError
            If the engine failed on a request.
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
        """Answer a prompt or a batch like calling the engine, without blocking the event loop."""
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
        """Yield the pieces of every response as they come, those of a batch interleaved.

        ``Response.index`` is the prompt, ``Response.choice`` which of its n responses. Without ``stream_response`` a
        piece is a whole response. Other arguments and errors are those of calling the engine. Leaving the iterator
        early cancels what still runs.
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
        """Yield for each prompt an iterator of its responses; with ``multiplex`` all of them as ``stream_infer`` does.

        Parameters
        ----------
        pbar
            A progress bar of ``tqdm``, which moves on with each prompt that is answered.
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
        """Answer one turn of a session, whose tokens the engine keeps between turns.

        Parameters
        ----------
        messages
            A text or conversation; when the session continues, only what is new in it. None with ``input_ids``.
        session_id
            The caller's name for the session, >= 0.
        gen_config
            How to generate.
        tools
            OpenAI tool descriptions, with the beginning of a session.
        stream_response
            False: one response with the whole response.
        sequence_start, sequence_end
            Whether the session begins with this turn (an old one of that id is forgotten), and ends with it.
        step
            Keep only this many of the session's tokens first; 0: all.
        do_preprocess
            False: a text is used as it is, without a chat template.
        adapter_name
            The LoRA adapter that answers; None: none.
        skip_stop_tokens, rewind_stop_tokens
            True and False: the token that ends a response is not part of it, and stays in the session.
        input_ids
            Token ids to use in place of ``messages``.
        stop
            True: stop the session's running response, and answer nothing.
        chat_template_config
            The chat template of this turn alone; None: the pipeline's.
        fields
            Fields of ``GenerationConfig`` by name, as in calling the engine.

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
        """Return a session's access to the engine by token ids.

        Parameters
        ----------
        stop
            Whether it is for stopping or ending the session. If not, wait until the session runs nothing.
        session_id
            The session.
        """
        generator = SessionGenerator(self._sessions, session_id)
        if not stop:
            await generator.wait_idle()
        return generator

    async def stop_session(self, session_id: int) -> None:
        """Stop a session's running response, if there is one; what there is of it stays in the session."""
        await (await self.get_generator(True, session_id)).async_cancel()

    async def end_session(self, session_id: int) -> None:
        """Make the engine forget a session, after its running response if there is one."""
        await (await self.get_generator(True, session_id)).async_end()

    def session(self, gen_config: GenerationConfig | None = None, adapter_name: str | None = None) -> Session:
        """Return a new conversation: call it for each turn, and close it, or use it as a context manager.

        Parameters
        ----------
        gen_config
            How to generate where a turn does not say.
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
        """Answer one turn of a conversation.

        Parameters
        ----------
        prompt
            What the user says, also with images; a list of OpenAI messages may begin with a system message.
        session
            What an earlier call returned, to continue with it; None begins a conversation.
        gen_config
            How to generate.
        do_preprocess
            False: a text is used as it is, without a chat template.
        stream_response
            True: iterate over the session's ``generator`` for the pieces of the response.
        fields
            Fields of ``GenerationConfig`` by name, as in calling the engine.

        Returns
        -------
        Session
            Its ``response`` is the response, its ``history`` all turns so far; see ``Session``. Close it to free its
            place in the cache early.

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
        """Return a prompt's token ids and the stop words of its chat template.

        Parameters
        ----------
        prompt, do_preprocess, adapter_name
            As in calling the engine.
        tools, template_options
            OpenAI tool descriptions, and further variables, for the chat template.

        Raises
        ------
        ValueError
            If the prompt is malformed.
        """
        return self._preparer.prepare(
            prompt, do_preprocess, tools, template_options=template_options, adapter_name=adapter_name
        )

    def prepare_inputs(self, prompts: str | Sequence[Any]) -> dict[str, Any]:
        """Return ``prompts`` as a list, and the ``input_ids`` of each, under these names."""
        batch, _ = as_batch(prompts)
        return {"prompts": list(batch), "input_ids": [self.prepare(prompt).ids for prompt in batch]}

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

    def get_logits(self, input_ids: TokenIds) -> "torch.Tensor":
        """Return the logits ``[texts, tokens, vocab]`` float32 after each token of texts.

        Parameters
        ----------
        input_ids
            As for ``get_ppl``, fewer tokens than the session length. Rows beyond the end of a shorter text are 0.

        Raises
        ------
        ValueError, RuntimeError
            As ``get_ppl``.
        """
        return prompt_logits(self.engine, input_ids)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Return the vector of each text, as a model that is made for embeddings wants it made.

        Parameters
        ----------
        texts
            A text, or several.
        prompt_name
            Which of the model's prompts is in front of each text; None: its default one, if it has one.
        dimensions
            How many numbers of each vector are kept, which then has length 1; None: all.
        truncate
            The end of a text that is longer than the model reads is left out; otherwise it is an error.

        Returns
        -------
        numpy.ndarray
            ``[texts, numbers]`` float32, or ``[numbers]`` of a single text.

        Raises
        ------
        ValueError
            If the model makes no embeddings, a text is too long, or there is no such prompt or size.
        """
        is_one, batch = _as_batch(texts)
        vectors = embed_texts(self.engine, self.tokenizer, batch, prompt_name, dimensions, truncate)
        return vectors[0] if is_one else vectors

    def embed_tokens(
        self, texts: str | Sequence[str], *, prompt_name: str | None = None, truncate: bool = False
    ) -> "list[np.ndarray[Any, np.dtype[np.float32]]] | np.ndarray[Any, np.dtype[np.float32]]":
        """Return a vector of each token of each text, as late interaction compares them.

        Parameters
        ----------
        texts, prompt_name, truncate
            As in ``embed``.

        Returns
        -------
        list of numpy.ndarray
            ``[tokens, numbers]`` float32 each, or that of a single text. Of a model with layers for them (BGE-M3,
            ColBERT) they have length 1, and with BGE-M3 the first token has none; of another encoder they are the
            hidden states.

        Raises
        ------
        ValueError
            If the model is no encoder, a text is too long, or there is no such prompt.
        """
        is_one, batch = _as_batch(texts)
        vectors = token_vectors(self.engine, self.tokenizer, batch, prompt_name, truncate)
        return vectors[0] if is_one else vectors

    def embed_sparse(
        self, texts: str | Sequence[str], *, prompt_name: str | None = None, truncate: bool = False
    ) -> list[dict[int, float]] | dict[int, float]:
        """Return how much each token of the vocabulary counts in each text, where it does.

        Parameters
        ----------
        texts, prompt_name, truncate
            As in ``embed``.

        Returns
        -------
        list of dict
            Weights above 0 by token id, ascending, of each text, or those of a single one.

        Raises
        ------
        ValueError
            If the model has no layer for it, a text is too long, or there is no such prompt.
        """
        is_one, batch = _as_batch(texts)
        vectors = sparse_vectors(self.engine, self.tokenizer, batch, prompt_name, truncate)
        return vectors[0] if is_one else vectors

    def score(
        self, pairs: Sequence[tuple[str, str]], *, truncate: bool = False
    ) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Return how much the second text of each pair is about the first, by a reranker; of an embedder, the cosine.

        Parameters
        ----------
        pairs
            Query and document of each.
        truncate
            As in ``embed``: the end of the longer text is left out.

        Returns
        -------
        numpy.ndarray
            ``[pairs]`` float32, through the activation that the model names.

        Raises
        ------
        ValueError
            If the model compares no texts, or a pair is too long.
        """
        return score_pairs(self.engine, self.tokenizer, pairs, truncate)

    def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter; see :meth:`lmdeploy.turbomind.engine.Engine.load_adapter`.

        A chat template in its directory is that of prompts for it.
        """
        self.engine.load_adapter(name, path)
        try:
            self._preparer.adapter_templates.add(name, locate_adapter(path))
        except ValueError:
            self.engine.unload_adapter(name)
            raise

    def unload_adapter(self, name: str) -> None:
        """Refuse later requests for an adapter; open ones end as they would have."""
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


def _as_batch(texts: str | Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether there is a single text, and the texts."""
    return (True, [texts]) if isinstance(texts, str) else (False, list(texts))
