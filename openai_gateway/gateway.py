"""What every route works with: the client of Triton and the model it serves."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Depends, Request

from lmdeploy.serve.client import TritonClient
from openai_gateway.errors import ApiError
from openai_gateway.settings import Settings


class Gateway:
    """State of one application: its settings, its client and, once known, the served model's name."""

    def __init__(self, settings: Settings, client: TritonClient) -> None:
        self.settings = settings
        self.client = client
        self.started = int(time.time())
        self._model_name = settings.model_name

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

    async def check_model(self, requested: str) -> str:
        """Return `requested` if it is served; a 404 error otherwise."""
        if requested != await self.model_name():
            raise ApiError(404, f"The model `{requested}` does not exist.", param="model", code="model_not_found")
        return requested


async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDependency = Annotated[Gateway, Depends(_gateway)]
