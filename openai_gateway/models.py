"""The models behind one gateway: one for good, or several that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lmdeploy.pooling import read_pooling
from lmdeploy.score_head import read_score_head
from lmdeploy.serve.client import GenerateRequest, TritonClient
from lmdeploy.serve.several.registry import Registry, ServedEntry
from lmdeploy.serve.several.wanted import newest_versions
from lmdeploy.templates.infilling import Infilling, infilling_of
from lmdeploy.templates.notations import GENERIC, NOTATIONS
from lmdeploy.templates.thinking import Thinking, thinking_of
from openai_gateway.adapters import Adapters
from openai_gateway.answering.token_texts import TokenTexts
from openai_gateway.errors import ApiError
from openai_gateway.protocol.tools import Tool
from openai_gateway.settings import Settings

if TYPE_CHECKING:
    from lmdeploy.templates.base import ChatTemplate
    from lmdeploy.tokenizer import Tokenizer
    from openai_gateway.tracing.spans import Tracing

_GENERIC = ("auto", *(name for name, described in NOTATIONS.items() if GENERIC in described))
_UNKNOWN = -1  # no token


@dataclass(frozen=True)
class Traits:
    """What a model's template, and who serves it, tell of it.

    Attributes
    ----------
    thinking
        Where its thoughts are in its answers; None: answers have none.
    infilling
        How it is asked for a missing middle; None: it cannot be, or nobody here knows.
    call_notation
        How it writes calls, one of `lmdeploy.templates.notations.PARSERS`.
    may_hold_calls
        It writes them in the generic notation, whose marks are text, so that a grammar can hold on to them.
    """

    thinking: Thinking | None = None
    infilling: Infilling | None = None
    call_notation: str = "auto"
    may_hold_calls: bool = False


class ServedModel:
    """One model, and what is asked of it.

    Parameters
    ----------
    name
        What callers call it.
    client
        Of its engine.
    engine_dir
        As `TokenTexts` takes it.
    traits
        What its template tells.
    """

    def __init__(self, name: str, client: TritonClient, engine_dir: Path | None, traits: Traits) -> None:
        self.name = name
        self.thinking = traits.thinking
        self.infilling = traits.infilling
        self.call_notation = traits.call_notation
        self.may_hold_calls = traits.may_hold_calls
        self.pooling = None if engine_dir is None else read_pooling(engine_dir)
        self.score_head = None if engine_dir is None else read_score_head(engine_dir)
        self.client = client
        self.adapters = Adapters(client)
        self.token_texts = TokenTexts(client, engine_dir)
        self._bos: int | None = _UNKNOWN

    async def bos_token_id(self) -> int | None:
        """Return the token that begins a sequence, asked for once; None when the model has none."""
        if self._bos == _UNKNOWN:
            self._bos = await self.client.bos_token_id()
        return self._bos


@dataclass(frozen=True)
class Chosen:
    """What a request asked for.

    Attributes
    ----------
    model
        Answers it.
    name
        What the caller called it: the model, an adapter of it, or a name without a version.
    is_adapter
        Whether it is an adapter.
    """

    model: ServedModel
    name: str
    is_adapter: bool = False

    @property
    def adapter(self) -> str | None:
        """The adapter that answers; None: the model itself."""
        return self.name if self.is_adapter else None

    async def prompt_ids(
        self, messages: list[dict[str, Any]], tools: Sequence[Tool], template_options: dict[str, Any]
    ) -> list[int]:
        """Return the tokens of a conversation, with the chat template and the tools applied.

        Raises
        ------
        ApiError
            It has pictures, whose tokens are not told.
        """
        if GenerateRequest(messages=messages).has_pictures:
            raise ApiError(400, "The tokens of prompts with pictures are not told.", param="messages")
        shown = [tool.for_template() for tool in tools]
        return await self.model.client.tokenize(
            messages=messages, tools=shown, template_options=template_options, adapter=self.adapter
        )


class Models(Protocol):
    """The models that are served now."""

    async def all(self) -> list[ServedModel]:
        """Return them, the one that is asked where a request names none first.

        Raises
        ------
        TritonUnavailable
            Nobody knows yet what the only model is called.
        """

    async def named(self) -> Mapping[str, ServedModel]:
        """Return them by their names, and the newest of a model's versions by the name without one; as `all`."""


class OneModel:
    """The only model of a Triton.

    Parameters
    ----------
    settings
        Its name, or None: what Triton says; its engine directory; what tells where it thinks.
    client
        Of the tritonserver.
    tracing
        Told the name.
    """

    def __init__(self, settings: Settings, client: TritonClient, tracing: Tracing | None = None) -> None:
        traits = _traits(settings, settings.engine_dir, settings.chat_template)
        self._model = ServedModel(settings.model_name or "", client, settings.engine_dir, traits)
        self._tracing = tracing

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


class SeveralModels:
    """The models of a registry, whoever changes it.

    Parameters
    ----------
    registry
        Looked at again for each request.
    client
        Of the tritonserver.
    settings
        How thoughts and calls are found in their answers.
    tracing
        Makes spans of their answers.
    """

    def __init__(
        self, registry: Registry, client: TritonClient, settings: Settings, tracing: Tracing | None = None
    ) -> None:
        self._registry = registry
        self._client = client
        self._settings = settings
        self._tracing = tracing
        self._entries: tuple[ServedEntry, ...] = ()
        self._models: dict[ServedEntry, ServedModel] = {}
        self._named: dict[str, ServedModel] = {}

    async def all(self) -> list[ServedModel]:
        """Return them; as `Models.all`."""
        await self._look()
        return list(self._models.values())

    async def named(self) -> Mapping[str, ServedModel]:
        """Return them by the names they are asked by; as `Models.named`."""
        await self._look()
        return self._named

    async def _look(self) -> None:
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
        return ServedModel(entry.name, client, engine_dir, traits)


def _traits(settings: Settings, engine_dir: Path | None, chat_template: str) -> Traits:
    """Return what is known of a model here, where its tokenizer and template can be looked at or not."""
    parser, notation = settings.reasoning_parser, settings.tool_call_parser
    if engine_dir is None and not chat_template:
        return Traits(thinking_of(parser, None), call_notation=notation)
    from lmdeploy.model import chat_template_for
    from lmdeploy.tokenizer import Tokenizer

    try:
        tokenizer = None if engine_dir is None else Tokenizer(str(engine_dir))
        template = chat_template_for(str(engine_dir), chat_template, tokenizer)
    except (ValueError, OSError):  # the model's own processes tell it
        return Traits(thinking_of(parser, None), call_notation=notation)
    tokens = () if tokenizer is None else tokenizer.added_tokens
    may_hold_calls = tokenizer is not None and notation in _GENERIC and _shows_generic_calls(template, tokenizer)
    thinking = thinking_of(parser, template)
    if thinking is not None and tokenizer is not None:
        thinking = replace(thinking, end_ids=tuple(tokenizer.encode(thinking.closing, add_bos=False)))
    return Traits(thinking, infilling_of(template, tokens), notation, may_hold_calls)


def _shows_generic_calls(template: ChatTemplate, tokenizer: Tokenizer) -> bool:
    """Return whether a model writes calls generically, and the mark is no special token: no grammar allows those."""
    mark = GENERIC.opening
    is_written = not template.lists_tools() and template.own_notation is None
    return (is_written or template.mentions(mark)) and mark in tokenizer.decode(tokenizer.encode(mark, add_bos=False))
