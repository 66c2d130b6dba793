"""TCP ports: those a tritonserver needs, whether one is free, and finding free ones."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from lmdeploy.serve.errors import PortInUseError

DEFAULT_TRITON_HOST = "127.0.0.1"

_LOWEST = 10_000  # of the ports that are looked at; below are those that people choose
_FEWEST = 4_096  # ports to choose among
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_OUTGOING = 32_768


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
    """Check that `port` can be listened on; raise `PortInUseError` if another process listens there.

    ``host``, ``port``: the address; port 0 is always free. ``what``: whose port it is and how to choose another, for
    the message.
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
    """Return `count` different ports that were free a moment ago.

    They are below those that the system gives to outgoing connections: one of these could take a port before its
    server listens there.
    """
    candidates = random.SystemRandom().sample(range(_LOWEST, _lowest_outgoing()), 64 * count)
    probes: list[socket.socket] = []
    try:
        for port in candidates:
            if len(probes) == count:
                break
            probe = socket.socket()
            try:
                probe.bind((host, port))
            except OSError:
                probe.close()
            else:
                probes.append(probe)
        if len(probes) < count:
            raise PortInUseError(f"{count} free ports on {host} could not be found")
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _lowest_outgoing() -> int:
    """Return the lowest port of outgoing connections, by Linux's own account; its default where it gives none."""
    try:
        lowest = int(_OUTGOING.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_OUTGOING
    return lowest if lowest - _LOWEST >= _FEWEST else _USUAL_OUTGOING
