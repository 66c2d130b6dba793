"""TCP ports: those a tritonserver needs, whether one is free, and finding free ones."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from lmdeploy.serve.errors import PortInUseError

DEFAULT_TRITON_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The ports of one tritonserver."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002

    @staticmethod
    def free() -> Ports:
        """Return three free ports."""
        return Ports(*free_ports(3))


def require_free(host: str, port: int, what: str) -> None:
    """Check that `port` can be listened on.

    Parameters
    ----------
    host, port
        The address; port 0 is always free.
    what : str
        Whose port it is and how to choose another, for the message.

    Raises
    ------
    PortInUseError
        Another process listens there.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUseError(f"port {port} on {host} cannot be used for {what}: {error.strerror}") from None


def reachable_host(host: str) -> str:
    """Return the name under which a server that listens on `host` is reached from this machine."""
    return "localhost" if host in ("0.0.0.0", "::", "") else host


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports that were free a moment ago."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
