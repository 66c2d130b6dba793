"""Offline inference: prompts in, responses out, in this process and over the engine that Triton hosts."""

import logging
import queue
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, Response, TurbomindEngineConfig
from lmdeploy.model import ChatTemplateConfig, chat_template_for
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine, EngineOutput
from lmdeploy.turbomind.supported import refuse_unsupported_engine

logger = logging.getLogger(__name__)

Message = dict[str, Any]
Prompt = str | list[Message]


def pipeline(
    model_path: str = "",
    backend_config: TurbomindEngineConfig | PytorchEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | None = None,
    log_level: str = "WARNING",
    max_log_len: int | None = None,
) -> "Pipeline":
    """Load a model for offline inference.

    Parameters
    ----------
    model_path
        A Hugging Face directory, a workspace of ``lmdeploy convert``, the name of a Hugging Face repository, or ``""``
        for the default model.
    backend_config
        Engine settings; default: ``TurbomindEngineConfig()``.
    chat_template_config
        Replaces the model's own chat template.
    log_level
        Level of the ``lmdeploy`` logger.
    max_log_len
        Most characters of a prompt shown in the log; None: all.

    Returns
    -------
    Pipeline
        Call it with a prompt, or a list of prompts.

    Raises
    ------
    ValueError
        If the checkpoint cannot be used or a setting is bad.
    """
    logging.getLogger("lmdeploy").setLevel(log_level.upper())
    return Pipeline(model_path, backend_config, chat_template_config, max_log_len)


class Pipeline:
    """A loaded model. Safe to use from many threads at once; close it, or use it as a context manager."""

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
        self.engine = Engine(model_path, config)
        self.tokenizer = Tokenizer(str(self.engine.directory.path))
        self.chat_template = chat_template_for(model_path, chat_template_config, self.tokenizer)
        self._max_log_len = max_log_len

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
        gen_config: GenerationConfig | list[GenerationConfig] | None = None,
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
        Response or list of Response
            One for one prompt, else a list in the order of the prompts. A prompt that does not fit the session length
            gets an empty text and the finish reason ``length``.

        Raises
        ------
        ValueError
            If a prompt or setting is malformed; nothing has run then.
        RuntimeError
            If the engine failed on a request.
        """
        batch, is_single = _as_batch(prompts)
        answers: dict[int, Response] = {}
        bar = _progress_bar(len(batch)) if use_tqdm else None
        try:
            for response in self._run(batch, gen_config, do_preprocess, stream=False):
                answers[response.index] = response
                if bar is not None:
                    bar.update()
        finally:
            if bar is not None:
                bar.close()
        ordered = [answers[index] for index in range(len(batch))]
        return ordered[0] if is_single else ordered

    batch_infer = __call__

    def stream_infer(
        self,
        prompts: str | Sequence[Any],
        gen_config: GenerationConfig | list[GenerationConfig] | None = None,
        *,
        do_preprocess: bool = True,
    ) -> Iterator[Response]:
        """Yield the pieces of every answer as they come, those of a batch interleaved (``Response.index`` tells which).

        Arguments and errors are those of calling the pipeline. Leaving the iterator early cancels what still runs.
        """
        batch, _ = _as_batch(prompts)
        return self._run(batch, gen_config, do_preprocess, stream=True)

    def prepare(self, prompt: Prompt, do_preprocess: bool = True) -> tuple[list[int], list[str]]:
        """Return a prompt's token ids and the stop words of its chat template."""
        if isinstance(prompt, str) and not do_preprocess:
            return self.tokenizer.encode(prompt), []
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = self.chat_template.render(messages)
        logger.info("prompt: %r", text[: self._max_log_len])
        return self.tokenizer.encode(text, self.chat_template.add_bos), self.chat_template.stop_words

    def _run(
        self,
        batch: Sequence[Prompt],
        gen_config: GenerationConfig | list[GenerationConfig] | None,
        do_preprocess: bool,
        stream: bool,
    ) -> Iterator[Response]:
        configs = _configs(gen_config, len(batch))
        prepared = [self.prepare(prompt, do_preprocess) for prompt in batch]
        outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
        index_of: dict[int, int] = {}
        try:
            for index, ((ids, stop_words), config) in enumerate(zip(prepared, configs, strict=True)):
                if len(ids) >= self.engine.session_len:
                    logger.warning(
                        "prompt %d has %d tokens; the session length is %d", index, len(ids), self.engine.session_len
                    )
                    yield Response("", 0, len(ids), "length", index=index)
                    continue
                request = self.engine.submit(ids, config, outputs.put, stop_words=stop_words, stream=stream)
                index_of[request] = index
            while index_of:
                output = outputs.get()
                if output.finish_reason == "error":
                    raise RuntimeError(output.error)
                yield _response(output, index_of[output.request])
                if output.finish_reason:
                    del index_of[output.request]
        finally:
            for request in index_of:
                self.engine.cancel(request)


def _as_batch(prompts: str | Sequence[Any]) -> tuple[Sequence[Prompt], bool]:
    """Return the prompts as a batch, and whether there was just one."""
    if isinstance(prompts, str):
        return [prompts], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise ValueError(f"prompts must be a text, a list of texts or messages, got {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], dict):
        return [list(prompts)], True
    return prompts, False


def _configs(gen_config: GenerationConfig | list[GenerationConfig] | None, count: int) -> list[GenerationConfig]:
    if isinstance(gen_config, list):
        if len(gen_config) != count:
            raise ValueError(f"gen_config must be one, or one for each of the {count} prompts, got {len(gen_config)}")
        return gen_config
    return [gen_config or GenerationConfig()] * count


def _response(output: EngineOutput, index: int) -> Response:
    reason: Literal["stop", "length", "cancelled"] | None = output.finish_reason or None  # type: ignore[assignment]
    return Response(
        output.text, output.generate_token_len, output.input_token_len, reason, token_ids=output.token_ids, index=index
    )


def _progress_bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, unit="prompt")
