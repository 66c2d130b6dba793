"""``POST /api/pull`` and ``DELETE /api/delete``, for administrators: models of a hub in the server's cache."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from lmdeploy.hub.names import HubName, hub_name
from lmdeploy.hub.pulled import PulledModel, pulled_models, remove
from lmdeploy.paths import pulled_records
from lmdeploy.serve import exec_with_parent
from openai_gateway.endpoints.ollama.protocol import NamedModel, PullRequest
from openai_gateway.endpoints.ollama.writer import LINES, last_line
from openai_gateway.errors import ApiError, OllamaErrorResponse, failures
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.streaming import EventResponse
from openai_gateway.parsing import BoundedRoute
from openai_gateway.registry import DELETE_MODEL, PULL_MODEL

_MAX_LINE_LEN = 64 * 1024  # bytes

router = APIRouter(route_class=BoundedRoute, responses=failures(OllamaErrorResponse))


@router.post(PULL_MODEL, response_model=dict[str, Any], responses=LINES)
async def pull(body: PullRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Download a model of the hub into the cache. Where the caller leaves, it ends; the next call continues."""
    name = _name(body.required)
    if gateway.is_pulling:
        raise ApiError(409, "another model is being pulled; try again when it is done", code="conflict")
    lines = _pulled(name, gateway)
    if body.stream:
        return EventResponse(lines, frame_error=last_line, media_type="application/x-ndjson")
    last = await run_unless_disconnected(request.receive, _last_of(lines))
    error = orjson.loads(last).get("error")
    if error is not None:
        raise ApiError(400, error, param="model")
    return Response(last, media_type="application/json")


@router.delete(DELETE_MODEL)
async def delete(body: NamedModel, gateway: GatewayDependency) -> Response:
    """Remove a model that was pulled, and that nobody is served."""
    name = _name(body.required)
    pulled = [model for model in await asyncio.to_thread(pulled_models, pulled_records()) if model.name == name]
    if not pulled:
        raise ApiError(404, f"model '{name}' was not pulled", param="model", code="model_not_found")
    served = [model.engine_dir for model in await gateway.models.all() if model.engine_dir is not None]
    if await asyncio.to_thread(_are_read, pulled, served):
        raise ApiError(409, f"model '{name}' is being served; unload it first", param="model", code="conflict")
    await asyncio.to_thread(remove, pulled_records(), name)
    return Response()


def _name(given: str) -> HubName:
    name = hub_name(given)
    if name is None:
        message = "model must be the name of a hub's repository, owner/name or owner/name:Q4_K_M"
        raise ApiError(400, message, param="model", code="invalid_value")
    return name


async def _pulled(name: HubName, gateway: Gateway) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a download, which runs in a process of its own and ends with this generator."""
    gateway.is_pulling = True
    try:
        bound = ("--max-bytes", str(gateway.settings.max_pull_bytes))
        command = (sys.executable, "-m", "lmdeploy.hub", *bound, "--", str(name))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            exec_with_parent.__file__,
            str(os.getpid()),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_LEN,
        )
        try:
            assert process.stdout is not None  # it is a pipe
            last = b""  # sent when the next download may begin
            while line := await process.stdout.readline():
                if b'"error"' in line or b'"success"' in line:
                    last = line
                else:
                    yield line
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        gateway.is_pulling = False
    if not last:
        raise ApiError(500, "the download ended without saying why; the server's log has more")
    yield last


async def _last_of(lines: AsyncGenerator[bytes, None]) -> bytes:
    last = b"{}"
    async with aclosing(lines):
        async for line in lines:
            last = line
    return last


def _are_read(pulled: list[PulledModel], engine_dirs: list[Path]) -> bool:
    """Return whether an engine has files of these models open."""
    blobs = {(model.snapshot / name).resolve() for model in pulled for name in model.files}
    for engine_dir in engine_dirs:
        try:
            files = json.loads((engine_dir / "manifest.json").read_text(encoding="utf-8"))["files"]
        except (OSError, ValueError, KeyError):
            continue
        if any((engine_dir / file).resolve() in blobs for file in files):
            return True
    return False
