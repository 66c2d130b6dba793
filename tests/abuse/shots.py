"""All attacks on all servers, in one form: bytes for a socket, and whether success is in order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from tests.abuse.attacks import Attack, gateway_attacks, proxy_requests, ray_requests
from tests.abuse.bodies import MODEL, Sent
from tests.abuse.gateway import gateway_requests
from tests.abuse.page import page_requests
from tests.abuse.servers import ADMIN_KEY, KEY, Servers, Target


@dataclass(frozen=True)
class Shot:
    """One attack on one server.

    ``make``: returns what is sent; made when it is sent, because some are long. ``may_be_served``: whether a response
    with success is in order. ``is_flood``: whether it is many connections: alone, it is sent by one sender.
    """

    target: Target
    name: str
    make: Callable[[], Attack]
    may_be_served: bool
    is_flood: bool = False


def shots(servers: Servers, other: str) -> Iterator[Shot]:
    """Yield each attack once.

    ``other``: ``HOST:PORT`` of a server that no request may reach.
    """
    made = {"gateway": gateway_attacks, "proxy": proxy_requests, "ray": ray_requests}
    for target in servers.targets:
        if target.name == "page":
            yield from _on_the_page(target, servers)
            continue
        for attack in made[target.name](other, MODEL):
            is_flood = attack.connections > 1
            yield Shot(target, attack.name, lambda attack=attack: attack, False, is_flood)  # type: ignore[misc]
            if not attack.is_unfinished:
                with_key = partial(attack.with_key, KEY)
                yield Shot(target, attack.name, with_key, True, is_flood)
        for request in gateway_requests(other, servers.hostile_adapter):
            is_administrators = "x-administrator" in request.headers
            if is_administrators and target.name != "gateway":
                continue
            key = ADMIN_KEY if is_administrators else KEY
            for lines, may_be_served in (((), False), ((f"Authorization: Bearer {key}",), request.may_be_served)):
                make = _sending(request, *lines)
                yield Shot(target, request.name, make, may_be_served, request.connections > 1)


def drawn(attacks: Sequence[Shot], max_attacks: int, seed: int) -> list[Shot]:
    """Return up to ``max_attacks`` attacks on each server, drawn at random."""
    generator = random.Random(seed)
    by_server: dict[str, list[Shot]] = {}
    for shot in attacks:
        by_server.setdefault(shot.target.name, []).append(shot)
    return [shot for shots in by_server.values() for shot in generator.sample(shots, min(max_attacks, len(shots)))]


def _on_the_page(target: Target, servers: Servers) -> Iterator[Shot]:
    for request in page_requests():
        yield Shot(target, request.name, _sending(request), request.path == "/login" and request.may_be_served)
    cookie, config = logged_in(target)
    for request in page_requests(config, (str(servers.canary), "/etc/passwd", "/dev/zero")):
        yield Shot(target, request.name, _sending(request, f"Cookie: {cookie}"), request.may_be_served)


def logged_in(page: Target) -> tuple[str, dict[str, Any]]:
    """Return the cookie of somebody with a key, and what the page says of itself."""
    with httpx.Client(base_url=page.url, trust_env=False) as client:
        response = client.post("/login", data={"username": "a", "password": KEY})
        response.raise_for_status()
        config: dict[str, Any] = json.loads(client.get("/config").text)
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items()), config


def _sending(request: Sent, *lines: str) -> Callable[[], Attack]:
    def make() -> Attack:
        body = request.make()
        named = {"Host": "localhost", **request.headers, "Content-Length": str(len(body)), "Connection": "close"}
        head = "\r\n".join([*(f"{name}: {value}" for name, value in named.items()), *lines])
        start = f"{request.method} {request.path} HTTP/1.1\r\n{head}\r\n\r\n"
        sent = start.encode("utf-8", "surrogatepass") + body
        return Attack(request.name, sent, request.connections, leaves=request.leaves)

    return make
