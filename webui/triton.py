"""Triton client of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lmdeploy.serve.client import GenerateRequest, TritonClient, TritonRequestError
from webui.conversation import Piece, continuing
from webui.reasoning import ReasoningSplitter
from webui.settings import Settings


class TritonServer(TritonClient):
    """A client that takes the page's settings, and says what its reader may choose from.

    ``address``, ``control_key``: of `TritonClient`.
    """

    def __init__(self, address: str, control_key: str = "", sampling_defaults: Mapping[str, Any] | None = None) -> None:
        super().__init__(address, control_key=control_key)
        # The model's (`lmdeploy.model_metadata.sampling_defaults`), which Triton does not report
        self._sampling_defaults = sampling_defaults or {}
        self._context_size: int | None = None
        self._context_len: int | None = None

    def sampling_defaults(self, model: str) -> Mapping[str, Any]:
        """Return the model's defaults (`webui.generating.Server`), as this process was given."""
        return self._sampling_defaults

    async def takes_images(self) -> bool:
        """Return whether questions may have images; Triton does not say."""
        return True

    def context_size(self, model: str) -> int | None:
        """Return how many tokens the model has room for (`webui.generating.Server`)."""
        return self._context_size

    async def models(self) -> list[str]:
        """Return the model's name, then those of its LoRA adapters.

        Adapters with a note are bound to API keys, which readers of the page have not shown. Raises `TritonUnavailable`
        if the server cannot be reached.
        """
        name = await self.model_name()
        if self._context_size is None:
            with suppress(TritonRequestError):  # an older server does not report it
                self._context_size = await self.context_len()
        try:
            adapters = await self.adapters()
        except TritonRequestError:  # asked to those alone who know the control key
            return [name]
        return [name, *sorted(adapter for adapter, note in adapters.items() if not note)]

    async def respond(self, messages: Sequence[dict[str, Any]], settings: Settings) -> AsyncIterator[Piece]:
        """Stream the response to messages (`webui.generating.Server`)."""
        if settings.tools.strip():
            raise ValueError("Calls of tools need a server with OpenAI's API, and this page asks Triton itself")
        if settings.thinking_budget is not None:
            raise ValueError("A budget of reasoning needs a server with OpenAI's API, and this page asks Triton itself")
        thinks = settings.enable_thinking
        options = {} if thinks is None else {"enable_thinking": thinks, "thinking": thinks}
        is_adapter = bool(settings.model) and settings.model != await self.model_name()
        request = GenerateRequest(
            messages=messages,
            stream=True,
            return_cached_len=True,
            return_token_ids=True,
            template_options=options | continuing(messages) or None,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p or None,
            repetition_penalty=_unless(1.0, settings.repetition_penalty),
            presence_penalty=settings.presence_penalty or None,
            frequency_penalty=settings.frequency_penalty or None,
            random_seed=settings.seed,
            stop_words=list(settings.stop_words) or None,
            response_format=settings.response_format,
            lora_name=settings.model if is_adapter else None,
        )
        splitter = ReasoningSplitter()
        async for chunk in self.generate(request):
            reasoning, text = splitter.feed(chunk.text, is_over=chunk.finish_reason is not None)
            yield Piece(
                text=text,
                reasoning=reasoning,
                finish_reason=chunk.finish_reason,
                token_count=chunk.generate_token_len,
                prompt_count=chunk.input_token_len or None,
                cached_count=chunk.cached_token_len,
                token_ids=chunk.token_ids,
            )


def _unless(neutral: float, value: float) -> float | None:
    return None if value == neutral else value
