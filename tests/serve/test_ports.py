"""Free ports: different ones, below those of outgoing connections, that can be listened on."""

import socket
from pathlib import Path

from lmdeploy.serve.ports import free_ports


def test_free_ports_differ_are_free_and_are_never_given_to_an_outgoing_connection() -> None:
    ports = free_ports(32)
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 32
    assert max(ports) < lowest_outgoing
    for port in ports:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", port))
