"""Which paths the ingress hands on, and how a replica makes a URL of one: no request may reach anything but its API."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from starlette.routing import Match
from yarl import URL

from openai_gateway.app import create_app
from openai_gateway.settings import Settings

# No empty segments, which begin another host, no backslashes, which some programs read as slashes, no control
# characters, no dots alone, which leave the path that was matched.
_PLAIN = re.compile(r"(?:/(?!\.\.?(?:/|$))[^/\\\x00-\x20\x7f]+)+/?|/")


class ServedPaths:
    """The paths of the gateway, by its own routes."""

    def __init__(self) -> None:
        self._routes = create_app(Settings()).routes

    def __contains__(self, path: str) -> bool:
        """Return whether the gateway has a route of this (decoded) path, of any method."""
        scope = {"type": "http", "path": path, "root_path": "", "method": "", "headers": []}
        return _PLAIN.fullmatch(path) is not None and any(
            route.matches(scope)[0] is not Match.NONE for route in self._routes
        )


def url_of(base: URL, path: str, query: str) -> URL:
    """Return where a request goes: to this server in any case, whatever its path and query hold."""
    return base.with_path(path).with_query(parse_qsl(query, keep_blank_values=True))
