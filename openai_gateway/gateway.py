"""What every route works with: the client of Triton and the model it serves."""

from __future__ import annotations

import logging
import time
from typing import Annotated

from fastapi import Depends, Request

from lmdeploy.serve.client import GenerateRequest, TritonClient
from openai_gateway.answering.token_texts import TokenTexts
from openai_gateway.endpoints.interactive.sessions import Sessions, engine_session
from openai_gateway.errors import ApiError
from openai_gateway.escaping import one_line
from openai_gateway.middleware.api_keys import key_of, salt_of_key
from openai_gateway.pictures import PictureDoor
from openai_gateway.qos import Qos
from openai_gateway.settings import Settings

logger = logging.getLogger(__name__)

SET_BY_GATEWAY = ("priority", "cache_salt")
"""Fields of a request that `Gateway.admit` may change."""

_UNKNOWN = -1  # no token
_SHOWN_NAME = 200  # characters of a name that is refused


class Gateway:
    """State of one application: its settings, its client and, once known, the served model's name."""

    def __init__(self, settings: Settings, client: TritonClient) -> None:
        self.settings = settings
        self.client = client
        self.started = int(time.time())
        self.token_texts = TokenTexts(client, settings.engine_dir)
        self.sessions = Sessions()
        self._pictures = PictureDoor(settings.allowed_media_hosts, settings.allowed_media_folder)
        self._qos = Qos.load(settings.qos_config_path) if settings.qos_config_path else None
        self._model_name = settings.model_name
        self._bos: int | None = _UNKNOWN

    async def model_name(self) -> str:
        """Return the id of the served model.

        Raises
        ------
        TritonUnavailable
            No name is set and the engine cannot be asked.
        """
        if self._model_name is None:
            self._model_name = await self.client.model_name()
        return self._model_name

    async def bos_token_id(self) -> int | None:
        """Return the token that begins a sequence, asked for once; None when the model has none."""
        if self._bos == _UNKNOWN:
            self._bos = await self.client.bos_token_id()
        return self._bos

    async def bring_pictures(self, request: GenerateRequest) -> None:
        """Put the pictures into a request that it names elsewhere.

        Raises
        ------
        ApiError
            One may not be had, or cannot be.
        """
        if request.has_pictures:
            request.messages = await self._pictures.brought_along(request.messages or ())

    async def check_model(self, requested: str) -> str:
        """Return `requested` if it is served; a 404 error otherwise."""
        if requested != await self.model_name():
            raise ApiError(
                404, f"The model `{requested[:_SHOWN_NAME]}` does not exist.", param="model", code="model_not_found"
            )
        return requested

    def admit(
        self, request: Request, generate: GenerateRequest, *, user: str | None = None, session_id: int | None = None
    ) -> None:
        """Let a request through to the engine with its user's priority and key's salt, and log what the settings allow.

        Raises
        ------
        ApiError
            The user has too many requests open, or the session belongs to an interactive conversation.
        """
        if session_id is not None and engine_session(session_id, key_of(request.scope)) in self.sessions:
            raise ApiError(400, f"The session_id `{session_id}` is occupied.", param="session_id")
        if self._qos is not None:
            admission = self._qos.admit(user)
            request.scope["lmdeploy.finally"].append(admission.release)
            generate.fields["priority"] = admission.priority
        key = key_of(request.scope)
        if self.settings.salts_by_key and key is not None:
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
