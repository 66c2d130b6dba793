"""The engine's metrics, which Triton reports on its own port."""

from __future__ import annotations

import logging

import httpx

logger = logging.getLogger(__name__)

_TIMEOUT = 3.0  # seconds


class EnginePage:
    """Reads Triton's page. Routers ask for it many times a second, so connections are kept."""

    def __init__(self, url: str | None) -> None:
        self._url = url  # where the page is; None: there is none
        self._http: httpx.AsyncClient | None = None

    async def text(self) -> bytes:
        """Return the page; nothing while Triton does not answer."""
        if self._url is None:
            return b""
        if self._http is None:
            self._http = httpx.AsyncClient(verify=False, trust_env=False, timeout=_TIMEOUT)
        try:
            response = await self._http.get(self._url)
            response.raise_for_status()
        except httpx.HTTPError as error:
            logger.warning("the engine's metrics at %s could not be read: %r", self._url, error)
            return b""
        return response.content

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None
