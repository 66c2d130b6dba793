"""Shared state of all routes: the models behind this gateway, its settings and its metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from lmdeploy.serve.client import CALLER, GenerateChunk, GenerateRequest, SleepReport, TritonClient
from lmdeploy.serve.multi_model.administration import Administration
from lmdeploy.serve.multi_model.registry import Registry
from openai_gateway.adapters import MAX_NAME_LEN
from openai_gateway.batches.runner import BatchRunner
from openai_gateway.batches.store import Limits, Store
from openai_gateway.endpoints.interactive.sessions import Sessions, engine_session
from openai_gateway.errors import ApiError, load_failure, one_line
from openai_gateway.generation.watching import watched
from openai_gateway.media import MediaFetcher, RequestMedia
from openai_gateway.metrics.engine import EnginePage
from openai_gateway.metrics.page import GatewayMetrics
from openai_gateway.metrics.responses import Watch
from openai_gateway.middleware.api_keys import caller_of_key, key_of, keys_of, salt_of_key
from openai_gateway.middleware.internal_requests import OpenRequests, is_internal
from openai_gateway.models import Chosen, Models, MultiModel, OneModel, ServedModel
from openai_gateway.qos import Qos
from openai_gateway.settings import Settings
from openai_gateway.stored_responses.record import Bounds, ResponseStore

if TYPE_CHECKING:
    from openai_gateway.tracing.spans import Tracing

logger = logging.getLogger(__name__)

SET_BY_GATEWAY = ("priority", "cache_salt", "caller", "lora_name")
"""Fields of a request that `Gateway.admit` may change."""

BATCH_PRIORITY = 1_000_000
"""Added to the priority of requests of batches: every other request is admitted before them."""

_RESPONSES_MEMORY = 256 * 2**20  # bytes of stored responses in memory, of all API keys together
_MAX_RESPONSES = 10_000  # of an API key
_SHOWN_NAME = 200  # characters of a name that is refused


class Gateway:
    """State of one application: its settings, its client, its metrics and the served models."""

    def __init__(
        self, settings: Settings, client: TritonClient, metrics: GatewayMetrics, tracing: Tracing | None = None
    ) -> None:
        self.settings = settings
        self.client = client
        self.models: Models
        self.administration: Administration | None = None
        self.models_memory: int | None = None  # bytes
        if settings.models_dir is None:
            self.models = OneModel(settings, client, tracing)
        else:
            registry = Registry(settings.models_dir)
            self.models_memory = registry.budget()
            self.models = MultiModel(registry, client, settings, tracing)
            self.administration = Administration(
                registry, settings.triton_address, settings.repository_key, settings.drain_seconds
            )
        self.metrics = metrics
        self.tracing = tracing
        self.engine_page = EnginePage(settings.triton_metrics_url)
        self.started = int(time.time())
        self.open_requests = OpenRequests()
        self.is_pulling = False
        self.store: Store | None = None
        if settings.files_dir is not None:
            limits = Limits(settings.max_file_bytes, settings.max_key_bytes, settings.max_key_files)
            self.store = Store(settings.files_dir, limits)
        self.responses = self._response_store()
        self.batch_runner: BatchRunner | None = None
        self.sessions = Sessions()
        self._media = MediaFetcher(settings.allowed_media_hosts, settings.allowed_media_folder)
        self._qos = Qos.load(settings.qos_config_path, settings.api_keys) if settings.qos_config_path else None

    def _response_store(self) -> ResponseStore:
        settings = self.settings
        if settings.responses_store is not None:
            return ResponseStore(settings.responses_store, Bounds(settings.max_key_bytes, _MAX_RESPONSES))
        bounds = Bounds(_RESPONSES_MEMORY // max(1, len(settings.api_keys)), _MAX_RESPONSES)
        return ResponseStore(None, bounds, _RESPONSES_MEMORY)

    async def default_model(self) -> ServedModel:
        """Return the model of requests that name none.

        Raises `TritonUnavailable` if nobody knows yet what it is called, and `ApiError` if there is none.
        """
        models = await self.models.all()
        if not models:
            raise ApiError(404, "No model is loaded.", code="model_not_found")
        return models[0]

    async def sleep_reports(self) -> dict[ServedModel, SleepReport | None]:
        """Return the models, as `Models.all` does, and what each has of the memory, as `ServedModel.sleep_report`."""
        models = await self.models.all()
        return dict(zip(models, await asyncio.gather(*(model.sleep_report() for model in models)), strict=True))

    async def administered(self, name: str | None, field: str) -> ServedModel:
        """Return the model that an administrator's `field` names, which is required where there are several.

        Raises `ApiError` if there is no such model, or none is named.
        """
        named = await self.models.named()
        if name is not None and name not in named:
            raise ApiError(404, f"The model `{name}` does not exist.", param=field, code="model_not_found")
        models = await self.models.all()
        if name is None and len(models) > 1:
            names = ", ".join(model.name for model in models)
            raise ApiError(400, f"{field} must be one of {names}: there are several.", param=field)
        return await self.default_model() if name is None else named[name]

    async def is_ready(self) -> bool:
        """Return whether a model, any of several, takes requests."""
        if self.administration is None:
            return await self.client.is_ready()
        models = await self.models.all()
        return any(await asyncio.gather(*(model.client.is_ready() for model in models)))

    async def fetch_images(self, request: Request, model: ServedModel, *requests: GenerateRequest) -> None:
        """Fetch the images that requests name elsewhere, and move those of tool results after them.

        Raises `ApiError` if one is not allowed or cannot be loaded, or the model takes none.
        """
        for generate in requests:
            if generate.messages is not None:
                generate.messages = model.readable(generate.messages)
        with_images = [generate for generate in requests if generate.has_images]
        if not with_images:
            return
        media = RequestMedia(self._media)
        request.scope["lmdeploy.finally"].append(media.release)
        for generate in with_images:
            generate.messages = await media.brought_along(generate.messages or ())

    async def bound_logprobs(self, model: ServedModel, *requests: GenerateRequest) -> None:
        """Limit the log probabilities of a body's collected requests to ``max_logprobs``.

        Raises `ApiError` if the token limit allows more. Where there is none, and the context allows more, one is set.
        """
        if (top := requests[0].fields.get("logprobs")) is None:
            return
        choices = len(requests) * requests[0].fields.get("n", 1)
        max_tokens = max(1, self.settings.max_logprobs // (choices * (top + 1)))
        limit = requests[0].fields.get("max_new_tokens", -1)  # -1: what fits
        if limit > max_tokens:
            message = (
                f"n * max_tokens * (top_logprobs + 1) must be at most {self.settings.max_logprobs}, "
                f"got {choices} * {limit} * {top + 1}; ask for fewer, or stream."
            )
            raise ApiError(400, message, param="logprobs", code="invalid_value")
        if limit < 0 and max_tokens < (await model.context_len() or 0):
            for generate in requests:
                generate.fields["max_new_tokens"] = max_tokens

    async def choose(self, requested: str | None, request: Request) -> Chosen:
        """Return the model or permitted adapter of a name; an error where there is none.

        ``requested``: the name; None: the model that is asked where a request names none.
        """
        if (key := key_of(request.scope)) is not None:
            CALLER.set(caller_of_key(key))
        if requested is None:
            model = await self.default_model()
            return Chosen(model, model.name)
        if found := (await self.models.named()).get(requested):
            if found.load_error:
                raise load_failure(requested)
            return Chosen(found, requested)
        if len(requested) <= MAX_NAME_LEN:  # no engine is asked about what no adapter is called
            for model in await self.models.all():
                if requested in await model.adapters.visible(*keys_of(request.scope)):
                    return Chosen(model, requested, is_adapter=True)
        raise ApiError(
            404, f"The model `{requested[:_SHOWN_NAME]}` does not exist.", param="model", code="model_not_found"
        )

    async def dispatch(
        self,
        request: Request,
        chosen: Chosen,
        generate: GenerateRequest,
        *,
        user: str | None = None,
        session_id: int | None = None,
        choices: int = 1,
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Return the engine's stream for a prompt that is admitted, with its images; raise as these steps do."""
        self.admit(request, generate, chosen=chosen, user=user, session_id=session_id)
        await self.fetch_images(request, chosen.model, generate)
        return self.watched(request, chosen.model, chosen.model.client.generate(generate), choices)

    def watched(
        self, request: Request, model: ServedModel, chunks: AsyncGenerator[GenerateChunk, None], choices: int = 1
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Return the engine's stream for one prompt, with metrics from the arrival of `request` on."""
        metrics = self.metrics.responses.of(model.name)
        return watched(chunks, Watch(metrics, request.scope["lmdeploy.begin"], choices))

    def admit(
        self,
        request: Request,
        generate: GenerateRequest,
        *,
        chosen: Chosen | None = None,  # what `choose` returned
        user: str | None = None,
        session_id: int | None = None,
    ) -> None:
        """Let a request through to the engine with its user's priority and key's salt, and log what the settings allow.

        Raises `ApiError` if the user has too many requests open, or the session belongs to an interactive conversation.
        """
        adapter = None if chosen is None else chosen.adapter
        if adapter is not None:
            generate.fields["lora_name"] = adapter
        if session_id is not None and engine_session(session_id, key_of(request.scope)) in self.sessions:
            raise ApiError(400, f"The session_id `{session_id}` is occupied.", param="session_id")
        of_batch = is_internal(request.scope)
        key = key_of(request.scope)
        if self._qos is not None:
            admission = self._qos.admit(user, *keys_of(request.scope), counts=not of_batch)
            request.scope["lmdeploy.finally"].append(admission.release)
            generate.fields["priority"] = admission.priority
        if of_batch:
            generate.fields["priority"] = BATCH_PRIORITY + generate.fields.get("priority", 0)
        if key is not None:
            generate.fields["caller"] = caller_of_key(key)
        if self.settings.cache_salt_by_key and key is not None:
            generate.fields["cache_salt"] = salt_of_key(key, generate.fields.get("cache_salt"))
        request_id = request.scope["lmdeploy.request_id"]
        logger.info("request %s is %s in the engine", request_id, generate.request_id)
        if length := self.settings.max_log_len:
            prompt = generate.text_input if generate.messages is None else repr(generate.messages)
            logger.info("request %s asks %s", request_id, one_line(prompt or repr(generate.input_ids), length))


async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDependency = Annotated[Gateway, Depends(_gateway)]
