"""``/v1/cache``, for administrators: KV cache contents by tier, drops and pins."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.middleware.api_keys import salt_of_key
from openai_gateway.models import Chosen, ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.protocol.fields import AnyText, Strict, Text, exactly_one
from openai_gateway.protocol.messages import Messages
from openai_gateway.registry import CACHE, DROP_CACHE, PIN_PROMPT, UNPIN_PROMPT

router = APIRouter(route_class=BoundedRoute)

_TIERS = {"memory": ("drop_memory",), "disk": ("drop_files",), "all": ("drop_memory", "drop_files")}


class DropCache(Strict):
    """Body of ``POST /v1/cache/drop``."""

    model: Text | None = None
    tier: Literal["memory", "disk", "all"] = "all"


class PinnedPrompt(Strict):
    """Body of ``POST /v1/cache/pin`` and ``/v1/cache/unpin``: a prompt, and whose requests it is of."""

    model: Text | None = None
    prompt: AnyText | None = None
    messages: Messages | None = None
    lora_name: Text | None = None
    cache_salt: AnyText | None = None
    api_key: AnyText | None = None

    _one_prompt = exactly_one("prompt", "messages")


class Tiers(BaseModel):
    """Contents of a model's cache: in the engine's memory, in the host's alongside it, and in files."""

    model: str
    device: dict[str, int]
    host: dict[str, int]
    disk: dict[str, int] | None
    pinned: dict[str, int]


class CacheList(BaseModel):
    """The caches of all models."""

    object: Literal["list"] = "list"
    data: list[Tiers]


class Pinned(Tiers):
    """The same after a prompt was pinned, of which this many tokens are kept."""

    tokens: int


@router.get(CACHE)
async def show_cache(gateway: GatewayDependency) -> CacheList:
    """Return the cache contents of each model by tier."""
    models = await gateway.models.all()
    tiers = [Tiers(model=model.name, **await model.client.control_cache("report")) for model in models]
    return CacheList(data=tiers)


@router.post(DROP_CACHE)
async def drop_cache(body: DropCache, gateway: GatewayDependency) -> Tiers:
    """Forget what no open request uses, pinned prompts included. Files go in the background."""
    model = await gateway.administered(body.model, "model")
    report: dict[str, Any] = {}
    for action in _TIERS[body.tier]:
        report = await model.client.control_cache(action)
    return Tiers(model=model.name, **report)


@router.post(PIN_PROMPT)
async def pin_prompt(body: PinnedPrompt, gateway: GatewayDependency) -> Pinned:
    """Compute a prompt, and let what the cache has of it be the last to leave memory."""
    model = await gateway.administered(body.model, "model")
    salt, ids = _salt(body, gateway), await _tokens(body, model)
    computed = GenerateRequest(input_ids=ids, stream=False, cache_salt=salt, lora_name=body.lora_name, max_new_tokens=1)
    async for _ in model.client.generate(computed):
        pass
    return Pinned(model=model.name, **await model.client.control_cache("pin", ids, salt, body.lora_name))


@router.post(UNPIN_PROMPT)
async def unpin_prompt(body: PinnedPrompt, gateway: GatewayDependency) -> Tiers:
    """Let a prompt that was pinned with the same body leave memory as others do."""
    model = await gateway.administered(body.model, "model")
    salt, ids = _salt(body, gateway), await _tokens(body, model)
    return Tiers(model=model.name, **await model.client.control_cache("unpin", ids, salt, body.lora_name))


def _salt(body: PinnedPrompt, gateway: Gateway) -> str | None:
    """Return the salt that requests with the body's key have."""
    if body.api_key is not None and body.api_key not in gateway.settings.api_keys:
        raise ApiError(400, "api_key must be a key that this server was started with.", param="api_key")
    if not gateway.settings.cache_salt_by_key:
        return body.cache_salt
    if body.api_key is None:
        message = "With --cache-salt-by-key a prompt is pinned for the requests of one key: api_key is required."
        raise ApiError(400, message, param="api_key")
    return salt_of_key(body.api_key, body.cache_salt)


async def _tokens(body: PinnedPrompt, model: ServedModel) -> list[int]:
    """Return the tokens of a prompt, as requests with it have them."""
    if body.messages is None:
        return await model.client.tokenize(text=body.prompt)
    chosen = Chosen(model, body.lora_name or model.name, body.lora_name is not None)
    return await chosen.prompt_ids([message.for_template() for message in body.messages], [], {})
