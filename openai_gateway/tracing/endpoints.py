"""Destinations of spans. Imports nothing of OpenTelemetry, so that commands can check what they were given."""

from __future__ import annotations

from urllib.parse import urlsplit

from lmdeploy.extras import require

FILE = "file:"
_PATH = "/v1/traces"  # of OTLP over HTTP


class TraceEndpointError(ValueError):
    """The endpoint is none; the text says what one is."""


def checked_endpoint(given: str) -> str:
    """Return an endpoint in full: a file, or the URL that OTLP over HTTP goes to.

    Raises `TraceEndpointError` if it is neither, and `MissingExtraError` if OpenTelemetry is not installed.
    """
    require("trace", "it")
    if given.startswith(FILE) and given != FILE:
        return given
    try:
        parts = urlsplit(given)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url:
        raise TraceEndpointError(f"must be http://HOST:4318, https://... or file:PATH, got {given}")
    return given if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{_PATH}"
