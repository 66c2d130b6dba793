"""``POST /v1/load_lora_adapter`` and ``POST /v1/unload_lora_adapter``, for administrators, with vLLM's bodies."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute
from openai_gateway.protocol.fields import AnyText, Strict, Text
from openai_gateway.registry import LOAD_ADAPTER, UNLOAD_ADAPTER

router = APIRouter(route_class=BoundedRoute)


class LoadAdapter(Strict):
    """Body of ``POST /v1/load_lora_adapter``: a folder of the engine's machine, and whose adapter it is."""

    lora_name: Text
    lora_path: AnyText
    api_keys: Annotated[list[AnyText], Field(max_length=1000, fail_fast=True)] | None = None
    base_model_name: Text | None = None


class UnloadAdapter(Strict):
    """Body of ``POST /v1/unload_lora_adapter``."""

    lora_name: Text
    base_model_name: Text | None = None


@router.post(LOAD_ADAPTER)
async def load_adapter(body: LoadAdapter, gateway: GatewayDependency) -> str:
    """Load a LoRA adapter, which is a model of its name from then on."""
    model = await gateway.administered(body.base_model_name, "base_model_name")
    if body.lora_name in await gateway.models.named():
        raise ApiError(400, f"`{body.lora_name}` is the served model itself.", param="lora_name")
    if not PurePath(body.lora_path).is_absolute():
        raise ApiError(400, "lora_path must be the absolute path of a folder on the server.", param="lora_path")
    keys = body.api_keys or []
    if set(keys) - set(gateway.settings.api_keys):
        raise ApiError(400, "api_keys must be keys that this server was started with.", param="api_keys")
    await model.adapters.load(body.lora_name, body.lora_path, keys)
    return f"Success: LoRA adapter '{body.lora_name}' added successfully."


@router.post(UNLOAD_ADAPTER)
async def unload_adapter(body: UnloadAdapter, gateway: GatewayDependency) -> str:
    """Refuse later requests for a LoRA adapter; open ones end as they would have."""
    model = await gateway.administered(body.base_model_name, "base_model_name")
    await model.adapters.unload(body.lora_name)
    return f"Success: LoRA adapter '{body.lora_name}' removed successfully."
