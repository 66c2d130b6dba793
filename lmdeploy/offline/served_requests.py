"""In-process stand-in for Triton, for requests in the servers' form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from lmdeploy.fields.field import fields_of
from lmdeploy.messages import ALL_THAT_IS_LEFT, GenerationConfig
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.offline.outputs import AsyncOutputs
from lmdeploy.prompts import PreparedPrompt
from lmdeploy.serve.errors import TritonUnavailable, request_error
from lmdeploy.serve.request import GenerateChunk, GenerateRequest
from lmdeploy.turbomind.engine import EngineOutput, EngineUnavailable

_OURS = frozenset(field.name for field in fields_of(GenerationConfig))
_SAMPLING = frozenset(field.name for field in fields_of(GenerationConfig) if field.makes_sampling)
_NEED_A_SERVER = {"prompt_logprobs": "echo with logprobs"}


class LocalClient:
    """`lmdeploy.serve.client.TritonClient`'s interface for an engine in this process.

    Use it inside one event loop.

    Parameters
    ----------
    pipe
        The model; it is not closed here.
    """

    def __init__(self, pipe: AsyncEngine) -> None:
        self._pipe = pipe

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        """Run one request and yield its responses; leaving early cancels it.

        Raises
        ------
        TritonRequestError
            The request is refused, or the engine failed on it.
        TritonUnavailable
            The engine is gone.
        """
        outputs = AsyncOutputs()
        try:
            config = None if request.fields.get("output_embedding") else _config(request)
            prompt = await asyncio.to_thread(self._prepared, request)
            number = self._submitted(request, prompt, config, outputs)
        except EngineUnavailable as error:
            raise TritonUnavailable(str(error)) from None
        except (ValueError, OverflowError) as error:
            raise request_error("INVALID_ARGUMENT", str(error)) from None
        is_over = False
        try:
            while not is_over:
                output = await outputs.get()
                is_over = output.is_final
                if output.finish_reason == "error":
                    raise request_error("INVALID_ARGUMENT" if output.is_bad_request else "INTERNAL", output.error)
                yield _chunk(output, config.logprobs if config else None)
        finally:
            if not is_over:
                self._pipe.engine.cancel(number)

    async def tokenize(self, *, text: str) -> list[int]:
        """Return the token ids of a text, with what the tokenizer puts around it."""
        return await asyncio.to_thread(self._pipe.tokenizer.encode, text)

    async def adapters(self) -> dict[str, str]:
        """Return the LoRA adapters that requests may name, each with an empty note: anybody may."""
        return dict.fromkeys(self._pipe.engine.adapters(), "")

    async def context_len(self) -> int:
        """Return how many tokens prompt and response have together at most."""
        return self._pipe.engine.session_len

    def _submitted(
        self, request: GenerateRequest, prompt: PreparedPrompt, config: GenerationConfig | None, outputs: AsyncOutputs
    ) -> int:
        engine, fields = self._pipe.engine, request.fields
        name = fields.get("lora_name")
        if config is None:
            begin, of_tokens = fields.get("second_text_begin"), bool(fields.get("output_token_embeddings"))
            return engine.embed(
                prompt.ids, outputs.put, begin, images=prompt.rows, adapter_name=name, of_tokens=of_tokens
            )
        return engine.submit(
            prompt.ids,
            config,
            outputs.put,
            stop_words=prompt.stop_words,
            stream=request.stream,
            images=prompt.rows,
            adapter_name=name,
        )

    def _prepared(self, request: GenerateRequest) -> PreparedPrompt:
        if request.input_ids is not None:
            return PreparedPrompt(list(request.input_ids), [])
        if request.text_input is not None:
            return self._pipe.prepare(request.text_input, do_preprocess=False)
        return self._pipe.prepare(
            list(request.messages or ()),
            tools=list(request.tools or ()),
            template_options=request.template_options,
            adapter_name=request.fields.get("lora_name"),
        )


def _config(request: GenerateRequest) -> GenerationConfig:
    """Return how to generate, with the defaults that a served request has.

    Raises
    ------
    ValueError
        A value is out of range, or needs a server.
    """
    for name, reported in _NEED_A_SERVER.items():
        if name in request.fields:
            raise ValueError(f"{reported} needs a server (lmdeploy serve api_server)")
    fields: dict[str, Any] = {name: value for name, value in request.fields.items() if name in _OURS}
    fields.setdefault("do_sample", not _SAMPLING.isdisjoint(fields))
    if fields.get("max_new_tokens") == ALL_THAT_IS_LEFT:
        fields["max_new_tokens"] = None
    if "stop_words" in fields:
        fields["stop_words"] = list(fields["stop_words"]) or None
    return GenerationConfig(**fields)


def _chunk(output: EngineOutput, most_likely: int | None) -> GenerateChunk:
    """Return an output as the response to a served request.

    Parameters
    ----------
    most likely
        How many of the most likely tokens were asked for.
    """
    chunk = GenerateChunk(
        text=output.text,
        token_ids=tuple(output.token_ids),
        finish_reason=output.finish_reason or None,
        stop_reason=output.stop_reason,
        input_token_len=output.input_token_len,
        generate_token_len=output.generate_token_len,
        index=output.index,
        history_token_len=output.history_token_len,
    )
    if output.embedding is not None:
        chunk.embedding = output.embedding.astype("<f4").tobytes()
    if output.logprobs is not None and most_likely is not None:
        chunk.token_logprobs = tuple(
            entry[token] for token, entry in zip(output.token_ids, output.logprobs, strict=True)
        )
        tops = [_most_likely(entry, most_likely) for entry in output.logprobs]
        chunk.top_token_ids = tuple(tuple(token for token, _ in top) for top in tops)
        chunk.top_logprobs = tuple(tuple(value for _, value in top) for top in tops)
    return chunk


def _most_likely(entry: dict[int, float], count: int) -> Sequence[tuple[int, float]]:
    """Return the most likely tokens in order, of a chosen one and then the most likely, which it may be one of."""
    items = list(entry.items())
    top = items if len(items) == count else items[1:]
    return sorted(top, key=lambda item: -item[1])
