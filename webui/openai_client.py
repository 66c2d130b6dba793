"""The page's client for any server that speaks OpenAI's API, in place of a Triton."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import openai
from openai.types.chat import ChatCompletionChunk

from lmdeploy.serve.client import GenerateChunk, GenerateRequest, TritonRequestError, TritonUnavailable


class OpenAIClient:
    """Has the methods of ``TritonClient`` that the page uses.

    Parameters
    ----------
    base_url
        Of the server, with or without ``/v1``.
    api_key
        A key of it, if it asks for one.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        root = base_url.rstrip("/").removesuffix("/v1")
        self._client = openai.AsyncOpenAI(base_url=f"{root}/v1", api_key=api_key or "none", max_retries=0)
        self._model = ""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Stream the answer to messages.

        Raises
        ------
        TritonUnavailable, TritonRequestError
            As the Triton client's: the server is away, or refuses the request.
        """
        fields = request.fields
        try:
            stream: openai.AsyncStream[ChatCompletionChunk] = await self._client.chat.completions.create(
                model=fields.get("lora_name") or self._model or await self.model_name(),
                messages=cast(Any, request.messages),
                max_tokens=fields.get("max_new_tokens"),
                temperature=fields.get("temperature"),
                top_p=fields.get("top_p"),
                stream=True,
            )
            count = 0
            async with stream:
                async for part in stream:
                    for choice in part.choices:
                        text = choice.delta.content or ""
                        count += 1 if text else 0
                        yield GenerateChunk(
                            text=text, finish_reason=choice.finish_reason, generate_token_len=count, index=choice.index
                        )
        except openai.APIStatusError as error:
            raise TritonRequestError(str(error.status_code), error.message) from None
        except openai.APIConnectionError as error:
            raise TritonUnavailable(str(error)) from None

    async def is_ready(self) -> bool:
        """Return whether the server lists its models."""
        try:
            await self.model_name()
        except TritonUnavailable:
            return False
        return True

    async def models(self) -> list[str]:
        """Return the names of the server's models.

        Raises
        ------
        TritonUnavailable
            It cannot be reached, or has none.
        """
        try:
            models = (await self._client.models.list()).data
        except openai.OpenAIError as error:
            raise TritonUnavailable(str(error)) from None
        if not models:
            raise TritonUnavailable("the server has no model")
        return [model.id for model in models]

    async def model_name(self) -> str:
        """Return the first model the server has.

        Raises
        ------
        TritonUnavailable
            It cannot be reached, or has none.
        """
        self._model = (await self.models())[0]
        return self._model

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
