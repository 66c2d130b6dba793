"""The models behind one gateway: one for good, or several that come and go."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmdeploy.model_metadata.pooling import read_pooling
from lmdeploy.model_metadata.sampling_defaults import AUTO, sampling_defaults
from lmdeploy.model_metadata.score_head import read_score_head
from lmdeploy.model_metadata.token_heads import read_token_heads
from lmdeploy.serve.client import GenerateRequest, SleepReport, TritonClient, TritonRequestError, TritonUnavailable
from lmdeploy.serve.multi_model.registry import Registry, ServedEntry
from lmdeploy.serve.multi_model.requested import newest_versions
from lmdeploy.templates.infilling import Infilling, infilling_of
from lmdeploy.templates.thinking import Thinking, thinking_of
from lmdeploy.templates.tool_call_formats import ToolCallFormat, tool_call_format_of
from lmdeploy.vl.constants import VISION_FILE
from openai_gateway.adapters import Adapters
from openai_gateway.errors import ApiError
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.media import PLACEHOLDER, readable_messages
from openai_gateway.protocol.tools import Tool
from openai_gateway.settings import Settings

if TYPE_CHECKING:
    from openai_gateway.tracing.spans import Tracing

_CONTEXT_KNOWN = 10.0  # seconds after which an engine may have been restarted with another length of context


@dataclass(frozen=True)
class Traits:
    """Facts of a model from its template and its server."""

    thinking: Thinking | None = None  # how it marks reasoning; None: it has none
    infilling: Infilling | None = None  # how it is asked for a missing middle; None: it cannot be, or nobody here knows
    tool_call_parser: str = "auto"  # how calls are found, one of `lmdeploy.templates.tool_call_formats.PARSERS`
    # How the model writes calls, so that a grammar can hold it to them; None: it is not known
    tool_call_format: ToolCallFormat | None = None
    media_in_tool_results: str = PLACEHOLDER  # as for `openai_gateway.media.readable_messages`


class ServedModel:
    """Served model, and its control requests.

    Raises `ValueError` if `generation_config` is a folder without a usable file. ``traits``: what its template says.
    ``generation_config``: where its sampling defaults come from (`lmdeploy.model_metadata.sampling_defaults`).
    """

    def __init__(
        self, name: str, client: TritonClient, engine_dir: Path | None, traits: Traits, generation_config: str = AUTO
    ) -> None:
        self.name = name  # what callers call it
        self.sampling_defaults = sampling_defaults(generation_config, engine_dir)
        self.thinking = traits.thinking
        self.infilling = traits.infilling
        self.tool_call_parser = traits.tool_call_parser
        self.tool_call_format = traits.tool_call_format
        self.pooling = None if engine_dir is None else read_pooling(engine_dir)
        self.is_text_only = engine_dir is not None and not (engine_dir / VISION_FILE).is_file()
        self._media_in_tool_results = traits.media_in_tool_results
        self.score_head = None if engine_dir is None else read_score_head(engine_dir)
        self.token_heads = None if engine_dir is None else read_token_heads(engine_dir)
        # As `TokenTexts` takes it
        self.client, self.engine_dir = client, engine_dir
        self.load_error = ""  # why the server could not load it when it was started
        self.adapters = Adapters(client)
        self.token_texts = TokenTexts(client, engine_dir)
        self._context_len: int | None = None
        self._context_known_until = -math.inf
        self._context_lock = asyncio.Lock()

    def readable(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with the media that the model reads; as `openai_gateway.media.readable_messages`."""
        return readable_messages(messages, is_text_only=self.is_text_only, in_tool_results=self._media_in_tool_results)

    async def context_len(self) -> int | None:
        """Return the maximum number of tokens of prompt and response together; None: unknown."""
        async with self._context_lock:
            if time.monotonic() >= self._context_known_until:
                # An older engine says nothing, nor does one that is being started: what was said last counts.
                with suppress(TritonRequestError, TritonUnavailable):
                    self._context_len = await self.client.context_len()
                self._context_known_until = time.monotonic() + _CONTEXT_KNOWN
        return self._context_len

    async def sleep_report(self) -> SleepReport | None:
        """Return the memory that the model holds; None: its engine does not sleep, or does not respond."""
        try:
            return await self.client.sleep_report()
        except (TritonRequestError, TritonUnavailable):
            return SleepReport("asleep", error=self.load_error) if self.load_error else None


@dataclass(frozen=True)
class Chosen:
    """Model of a request, with its adapter."""

    model: ServedModel  # answers it
    name: str  # what the caller called it: the model, an adapter of it, or a name without a version
    is_adapter: bool = False  # whether it is an adapter

    @property
    def adapter(self) -> str | None:
        """The adapter that answers; None: the model itself."""
        return self.name if self.is_adapter else None

    async def prompt_ids(
        self, messages: list[dict[str, Any]], tools: Sequence[Tool], template_options: dict[str, Any]
    ) -> list[int]:
        """Return the tokens of a conversation, with the chat template and the tools applied.

        Raises `ApiError` if it has images, whose tokens are not given.
        """
        messages = self.model.readable(messages)
        if GenerateRequest(messages=messages).has_images:
            raise ApiError(400, "The tokens of prompts with images are not given.", param="messages")
        shown = [tool.for_template() for tool in tools]
        return await self.model.client.tokenize(
            messages=messages, tools=shown, template_options=template_options, adapter=self.adapter
        )


class Models(Protocol):
    """The models that are served now."""

    async def all(self) -> list[ServedModel]:
        """Return the models, the default first.

        Raises `TritonUnavailable` if nobody knows yet what the only model is called.
        """

    async def named(self) -> Mapping[str, ServedModel]:
        """Return them by their names, and the newest of a model's versions by the name without one; as `all`."""


class OneModel:
    """The only model of a Triton.

    ``settings``: its name, or None: what Triton says; its engine directory; what says where it thinks.
    """

    def __init__(self, settings: Settings, client: TritonClient, tracing: Tracing | None = None) -> None:
        traits = _traits(settings, settings.engine_dir, settings.chat_template)
        self._model = ServedModel(
            settings.model_name or "", client, settings.engine_dir, traits, settings.generation_config
        )
        self._tracing = tracing  # called with the name

    async def all(self) -> list[ServedModel]:
        """Return it; as `Models.all`."""
        if not self._model.name:
            self._model.name = await self._model.client.model_name()
        if self._tracing is not None:
            self._tracing.model = self._model.name
        return [self._model]

    async def named(self) -> Mapping[str, ServedModel]:
        """Return it by its name."""
        return {model.name: model for model in await self.all()}


class MultiModel:
    """The models of a registry, whoever changes it."""

    def __init__(
        self, registry: Registry, client: TritonClient, settings: Settings, tracing: Tracing | None = None
    ) -> None:
        self._registry = registry  # looked at again for each request
        self._client = client
        self._settings = settings  # how reasoning and calls are found in their responses
        self._tracing = tracing  # makes spans of their responses
        self._entries: tuple[ServedEntry, ...] = ()
        self._models: dict[ServedEntry, ServedModel] = {}
        self._named: dict[str, ServedModel] = {}

    async def all(self) -> list[ServedModel]:
        """Return them; as `Models.all`."""
        await self._poll()
        return list(self._models.values())

    async def named(self) -> Mapping[str, ServedModel]:
        """Return the models by the names of requests; as `Models.named`."""
        await self._poll()
        return self._named

    async def _poll(self) -> None:
        entries = self._registry.models()
        if entries == self._entries:
            return
        models = {entry: self._models.get(entry) or await self._model(entry) for entry in entries}
        by_name = {model.name: model for model in models.values()}
        self._named = by_name | {name: by_name[version] for name, version in newest_versions(by_name).items()}
        self._entries, self._models = entries, models

    async def _model(self, entry: ServedEntry) -> ServedModel:
        tracer = None if self._tracing is None else self._tracing.of_model(entry.name)
        client, engine_dir = self._client.of_model(entry.suffix, tracer), Path(entry.engine_dir)
        traits = await asyncio.to_thread(_traits, self._settings, engine_dir, entry.chat_template)
        model = ServedModel(entry.name, client, engine_dir, traits, self._settings.generation_config)
        model.load_error = entry.error
        return model


def _traits(settings: Settings, engine_dir: Path | None, chat_template: str) -> Traits:
    """Return the facts of a model whose tokenizer and template may or may not be on this machine."""
    parser, named = settings.reasoning_parser, settings.tool_call_parser
    unseen = Traits(
        thinking_of(parser, None),
        tool_call_parser=named,
        tool_call_format=tool_call_format_of(named, None),
        media_in_tool_results=settings.media_in_tool_results,
    )
    if engine_dir is None and not chat_template:
        return unseen
    from lmdeploy.model import chat_template_for
    from lmdeploy.tokenizer import Tokenizer

    try:
        tokenizer = None if engine_dir is None else Tokenizer(str(engine_dir))
        template = chat_template_for(str(engine_dir), chat_template, tokenizer)
    except (ValueError, OSError):  # the model's own processes report it
        return unseen
    tokens = () if tokenizer is None else tokenizer.added_tokens
    thinking = thinking_of(parser, template)
    if thinking is not None and tokenizer is not None:
        thinking = replace(thinking, end_ids=tuple(tokenizer.encode(thinking.closing, add_bos=False)))
    return replace(
        unseen,
        thinking=thinking,
        infilling=infilling_of(template, tokens),
        tool_call_format=tool_call_format_of(named, template.tool_call_format),
    )
