"""Requests of the gateway to itself: the requests of batches.

They pass the same middleware and routes as those of clients, as ASGI calls. What distinguishes them is a
member of the scope, which servers never set: no client can claim it.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

INTERNAL = "lmdeploy.own"


@dataclass
class OpenRequests:
    """How many requests of clients are open in this process."""

    count: int = 0


def is_internal(scope: Scope) -> bool:
    """Return whether the gateway itself asks."""
    return INTERNAL in scope
