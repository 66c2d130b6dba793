"""Which of Triton's protocols are closed, for every server we start.

Inference, health, metadata, configuration and statistics stay open: clients use them. The others administer the server,
and the known ways into it lead through them (docs/security.md). Triton opens them to whoever shows a key, which is made
for each start and told to nobody.
"""

from __future__ import annotations

import ipaddress
import secrets

CLOSED = ("shared-memory", "model-repository", "trace", "logging")
_HEADER = "lmdeploy-admin"  # gRPC metadata: triton-grpc-protocol-lmdeploy-admin


def new_key() -> str:
    """Return a key that nobody can guess."""
    return secrets.token_hex(32)


def restriction_options(key: str) -> dict[str, str]:
    """Return the options of tritonserver, without ``--``, that close protocols to all who lack `key`."""
    closed = f"{','.join(CLOSED)}:{_HEADER}={key}"
    return {
        "http-restricted-api": closed,
        "grpc-restricted-protocol": closed,
        # Doors of two clouds, to which these restrictions do not apply before server 2.67.
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
    }


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or empty: every address
        return False
