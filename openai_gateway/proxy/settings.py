"""Settings of a proxy, and their defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from openai_gateway.settings import Settings

DEFAULT_PROXY_PORT = 8000
STRATEGIES = ("random", "min_expected_latency", "min_observed_latency", "affinity")
_HEARTBEAT = "LMDEPLOY_CONTROLLER_HEART_BEAT_EXPIRATION"
_DEFAULT_HEARTBEAT = 90.0


def heartbeat_seconds() -> float:
    """Return how often nodes are looked at, from LMDeploy's environment variable or its default."""
    return float(os.environ.get(_HEARTBEAT, _DEFAULT_HEARTBEAT))


@dataclass(frozen=True, kw_only=True)
class ProxySettings:
    """Settings of a proxy."""

    strategy: str = STRATEGIES[1]  # one of `STRATEGIES`
    state_file: Path | None = None  # where the nodes are kept over a restart; None: nowhere
    api_keys: tuple[str, ...] = ()  # one of them is needed; empty: none is
    # One of them is needed to register and remove nodes; empty: that is for callers on this machine
    admin_keys: tuple[str, ...] = ()
    node_key: str | None = None  # shown to nodes, which ask for a key too, and with it a digest of the caller's
    allow_private_nodes: bool = False  # whether nodes may have private addresses (`openai_gateway.proxy.addresses`)
    check_seconds: float = _DEFAULT_HEARTBEAT  # between two looks at a node that is in service
    return_seconds: float = 1.0  # between two looks at a node that has failed
    evict_seconds: float = 3600.0  # after which a node that has failed is removed
    # Timeouts of a node: to accept a connection, and until each next piece of a response
    connect_seconds: float = 5.0
    read_seconds: float = 600.0
    retry_seconds: float = 10.0  # how long a request waits for a node when none is in service
    max_requests: int = 4096  # requests beyond this many at a time are refused with 429
    max_body_bytes: int = Settings.max_body_bytes  # a longer request body is refused with 413
    # Of all long request bodies at a time, and half of it of one API key; those beyond wait, then are refused with 503
    max_bodies_bytes: int = Settings.max_bodies_bytes
    drain_seconds: float = Settings.drain_seconds  # what open requests get when the proxy is asked to stop
