"""Restricted protocols of Triton, closed for every server we start.

Inference, health, metadata, configuration and statistics stay open: clients use them. The others administer the server,
and the known ways into it lead through them (docs/deployment/security.md). Triton opens them to whoever shows a key.
A key is made for each start and never published. Where models come and go, one more key opens the model repository to
our gateway. Both are passed in the environment: backend_cpp/triton/private_files.cc puts them in place of those on the
command line, which other users of the machine can read.
"""

from __future__ import annotations

import ipaddress
import secrets

CLOSED = ("shared-memory", "model-repository", "trace", "logging")
_REPOSITORY = "model-repository"
_HEADER = "lmdeploy-admin"
RESTRICTION_KEY, REPOSITORY_KEY = "LMDEPLOY_RESTRICTION_KEY", "LMDEPLOY_REPOSITORY_KEY"
GRPC_KEY_HEADER = f"triton-grpc-protocol-{_HEADER}"
"""The metadata that a key goes into."""


def new_key() -> str:
    """Return a key that nobody can predict."""
    return secrets.token_hex(32)


def restriction_options(key: str, *, but_repository_over_grpc: bool = False) -> dict[str, str]:
    """Return the options of tritonserver, without ``--``, that close protocols to all who lack `key`.

    ``but_repository_over_grpc``: the model repository has a key of its own over gRPC, see `repository_option`.
    """
    others = [name for name in CLOSED if name != _REPOSITORY] if but_repository_over_grpc else CLOSED
    return {
        "http-restricted-api": f"{','.join(CLOSED)}:{_HEADER}={key}",
        "grpc-restricted-protocol": f"{','.join(others)}:{_HEADER}={key}",
        # Doors of two clouds, to which these restrictions do not apply before server 2.67.
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
    }


def repository_option(key: str) -> str:
    """Return the option of tritonserver that opens the model repository over gRPC to who has `key`."""
    return f"--grpc-restricted-protocol={_REPOSITORY}:{_HEADER}={key}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or empty: every address
        return False
