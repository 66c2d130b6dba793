"""Attacks on the chat page, as requests: `page_requests` makes them for one page, from what its ``/config`` says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.abuse.bodies import FORM, JSON, Sent, filled, form

LONG = 24 * 2**20  # bytes: three times what the page takes
SESSION = "abuse"
API = "/gradio_api"
EVENT_PATHS = (f"{API}/run/predict", f"{API}/queue/join")
# Files of any machine that a server must not read for others, special ones that never end, and hosts to ask.
PATHS = (
    "/etc/passwd",
    "/etc/shadow",
    "/proc/self/environ",
    "/proc/self/cmdline",
    "/proc/self/fd/0",
    "/dev/zero",
    "/dev/stdin",
    "file:///etc/passwd",
    "/etc/../etc/passwd",
    "../../../../../../../etc/passwd",
    "pyproject.toml",
    "/",
    "",
    "a" * 5000,
    "/etc/passwd\0.png",
    "http://127.0.0.1:1/secret.png",
    "http://169.254.169.254/latest/meta-data/",
    "https://example.com/image.png",
)
NO_ROUTES = (
    ("GET", "/file=/etc/passwd"),
    ("GET", f"{API}/file=/etc/passwd"),
    ("GET", f"{API}/file//etc/passwd"),
    ("GET", f"{API}/file=/dev/zero"),
    ("GET", f"{API}/file=https://example.com/"),
    ("GET", f"{API}/file=http://127.0.0.1:1/"),
    ("GET", f"{API}/proxy=https://example.hf.space/"),
    ("GET", f"{API}/proxy=http://127.0.0.1:1/"),
    ("GET", "/monitoring"),
    ("GET", "/monitoring/summary"),
    ("GET", "/monitoring/key"),
    ("GET", "/?deep_link=../a"),
    ("GET", "/config?deep_link=../a"),
    ("GET", f"{API}/deep_link?session_hash={SESSION}"),
    ("GET", f"{API}/info?all_endpoints=true"),
    ("GET", f"{API}/openapi.json"),
    ("GET", f"{API}/startup-events"),
    ("GET", f"{API}/dev/reload"),
    ("GET", f"{API}/token"),
    ("GET", f"{API}/user"),
    ("GET", f"{API}/runs"),
    ("GET", f"{API}/run-history/buckets"),
    ("GET", f"{API}/upload_progress?upload_id=a"),
    ("GET", f"{API}/custom_component/a/client/component/index.js"),
    ("GET", f"{API}/queue/data?session_hash=nobody"),
    ("GET", f"{API}/queue/status"),
    ("GET", f"{API}/vibe-code"),
    ("GET", "/static/../../../../../../etc/passwd"),
    ("GET", "/assets/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd"),
    ("GET", "/svelte/../../../../etc/passwd"),
    ("GET", "/logout"),
    ("GET", "/pwa_icon/100000"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", f"{API}/reset"),
    ("POST", f"{API}/cancel"),
    ("POST", f"{API}/component_server"),
    ("POST", f"{API}/process_recording"),
    ("POST", f"{API}/run-history/connect"),
    ("POST", f"{API}/vibe-code"),
    ("POST", f"{API}/vibe-edit"),
    ("POST", f"{API}/stream/a"),
    ("POST", f"{API}/stream/a/close"),
    ("POST", f"{API}/call/ask"),
    ("POST", f"{API}/call/v2/ask"),
    ("POST", f"{API}/api/ask"),
    ("POST", f"{API}/run/ask"),
    ("PUT", f"{API}/upload"),
    ("DELETE", f"{API}/upload"),
    ("POST", "/"),
)
# Bodies of events that are none: each is sent to the queue, and to be run at once.
WRONG_EVENTS: Sequence[Any] = (
    None,
    [],
    "event",
    {},
    {"data": []},
    {"data": {}, "fn_index": 0, "session_hash": SESSION},
    {"data": [], "fn_index": -1, "session_hash": SESSION},
    {"data": [], "fn_index": 10**9, "session_hash": SESSION},
    {"data": [], "fn_index": 10**30, "session_hash": SESSION},
    {"data": [], "fn_index": "0", "session_hash": SESSION},
    {"data": [], "fn_index": 1.5, "session_hash": SESSION},
    {"data": [], "fn_index": 0, "session_hash": None},
    {"data": [], "fn_index": 0, "session_hash": "../../etc"},
    {"data": [], "fn_index": 0, "session_hash": "a" * 100_000},
    {"data": [], "fn_index": 0, "session_hash": SESSION, "trigger_id": 10**9},
    {"data": [], "fn_index": 0, "session_hash": SESSION, "event_data": [[[]]]},
)
WRONG_VALUES: Sequence[Any] = (
    True,
    -1,
    10**400,
    1e308,
    "",
    "\x00",
    "a" * 2_000_000,
    [],
    {},
    [None],
    {"text": 1, "files": 1},
    {"text": "a", "files": [None]},
    {"text": "a", "files": [{}] * 10_000},
    {"turns": [{"question": "a", "responses": [{"text": 1, "token_count": 10**400}], "shown": 10**400}]},
    {"turns": [{"question": "a", "images": ["/etc/passwd", "a" * 5000, 1]}]},
    {"turns": [{"question": "a"}] * 10_000},
    {"__type__": "update", "value": "a"},
    [0, 10**400],
    [10**400, 0],
)


def file_objects(path: str) -> list[Any]:
    """Return values of a field that Gradio could take for a file of this path."""
    meta = {"_type": "gradio.FileData"}
    file = {"path": path, "meta": meta}
    full = {"path": path, "url": path, "orig_name": "a.png", "mime_type": "image/png", "size": 1, "meta": meta}
    return [
        file,
        full,
        {**full, "is_stream": True},
        {"path": path},
        [file],
        {"value": file, "__type__": "update"},
        {"a": {"b": [[file]]}},
        {"text": "a", "files": [full]},
        {"text": full, "files": []},
        {"file": full, "alt_text": None},
        {"turns": [{"question": file, "images": [path], "responses": [{"text": file}]}]},
    ]


def event(number: int, values: Sequence[Any], event_data: Any = None, session: str = SESSION) -> dict[str, Any]:
    """Return the body of an event."""
    return {
        "fn_index": number,
        "data": list(values),
        "session_hash": session,
        "event_data": event_data,
        "trigger_id": None,
    }


def events(config: Mapping[str, Any]) -> Iterator[tuple[int, list[Any]]]:
    """Return each event of a page, by number, with a value for each component that it reads."""
    props = {component["id"]: component["props"] for component in config["components"]}
    kinds = {component["id"]: component["type"] for component in config["components"]}
    for dependency in config["dependencies"]:
        values = [
            {"text": "a", "files": []} if kinds[component] == "multimodaltextbox" else props[component].get("value")
            for component in dependency["inputs"]
        ]
        yield dependency["id"], values


def file_requests(config: Mapping[str, Any], paths: Sequence[str]) -> Iterator[Sent]:
    """Return requests that name files in each field of each event, to be run at once and by the queue.

    The first path is named in every way, the others in the usual one.
    """
    objects = file_objects(paths[0]) + [file_objects(path)[1] for path in paths[1:]]
    for number, values in events(config):
        bodies = [
            event(number, [*values[:at], made, *values[at + 1 :]]) for at in range(len(values)) for made in objects
        ]
        bodies += [event(number, values, {"index": 0, "value": made, "previous_value": made}) for made in objects]
        bodies += [event(number, [made]) for made in objects]
        for body in bodies:
            for path in EVENT_PATHS:
                yield _event_request(f"a file in event {number}", path, body, may_be_served=True)


def page_requests(config: Mapping[str, Any] | None = None, paths: Sequence[str] = PATHS) -> Iterator[Sent]:
    """Return all attacks on a page.

    ``config``: what the page says at ``/config``; None: it asks for a key first. ``paths``: of files and hosts that
    nobody may have the page read.
    """
    for method, path in NO_ROUTES:
        body = b"{}" if method == "POST" else b""
        yield Sent("a route of Gradio's", method, path, body, JSON, may_be_served="deep_link=" in path)
    for path in paths:
        if path and "\0" not in path:
            yield Sent("a file by its path", "GET", f"{API}/file={path}")
    for path in (*EVENT_PATHS, "/login"):
        for name, make in floods().items():
            yield Sent(name, "POST", path, make, JSON)
        yield Sent("a body of another type", "POST", path, b'{"data": []}', {"content-type": "text/plain"})
        for wrong in WRONG_EVENTS:
            yield _event_request("no event", path, wrong)
    yield from _uploads()
    yield from _logins()
    for number, values in events(config) if config else ((number, [None] * 18) for number in range(40)):
        for wrong in WRONG_VALUES:
            for path in EVENT_PATHS:  # each event is refused by one of them
                for at in range(len(values)):
                    body = event(number, [*values[:at], wrong, *values[at + 1 :]])
                    yield _event_request(f"a wrong value in event {number}", path, body, may_be_served=True)
                yield _event_request(
                    f"a wrong cause of event {number}", path, event(number, values, wrong), may_be_served=True
                )
    if config:
        yield from file_requests(config, paths)
        yield from _sessions(config)


def floods() -> dict[str, Callable[[], bytes]]:
    """Return bodies that are too long, or cost much more than they are long."""
    begin = json.dumps(event(0, []))[:-1]
    return {
        "lists, too long": lambda: filled("[", "[]", "]", LONG),
        "zeros, too long": lambda: bytes(LONG),
        "lists in a field nobody knows": lambda: filled(f'{begin}, "a": [', "[]", "]}", 8 * 2**20),
        "objects for data": lambda: filled('{"data": [', "{}", "]}", 8 * 2**20),
        "texts for data": lambda: filled('{"data": [', '"ab"', "]}", 8 * 2**20),
        "numbers for data": lambda: filled('{"data": [', "1.5e8", "]}", 8 * 2**20),
        "opening brackets": lambda: b"[" * (8 * 2**20),
        "opening braces": lambda: b'{"a":' * 2**20,
        "half characters": lambda: b'{"data": ["' + b"\xf0" * 2**20 + b'"]}',
        "a number of a million digits": lambda: b'{"fn_index": ' + b"9" * 2**20 + b"}",
    }


def _sessions(config: Mapping[str, Any]) -> Iterator[Sent]:
    """Return long conversations, each in its own session, for all events that take them."""
    turns = [{"question": "a" * 2**20, "responses": [{"text": "b" * 2**20}]}] * 3
    kinds = {component["id"]: component["type"] for component in config["components"]}
    for dependency in config["dependencies"]:
        if [kinds[component] for component in dependency["inputs"]] == ["json"]:
            for number in range(20):
                body = event(dependency["id"], [{"id": str(number), "turns": turns}], session=f"flood-{number}")
                yield _event_request("a long conversation", EVENT_PATHS[0], body, may_be_served=True)


def _uploads() -> Iterator[Sent]:
    path = f"{API}/upload"
    names = ("a.png", "../../a.png", "..", "/etc/a.png", "a" * 5000 + ".png", "a\\..\\b.png", "", "中" * 300 + ".png")
    for name in names:
        yield _form(f"an upload called {name[:20]}", path, [(name, b"a")], may_be_served=True)
    yield _form("more files than a form may have", path, [("a.png", b"a")] * 2000)
    yield _form("a file that is too long", path, [("a.png", bytes(17 * 2**20))])
    yield _form("a form that is too long", path, [("a.png", bytes(14 * 2**20))] * 5)
    yield Sent("a field that is too long", "POST", path, lambda: form(('name="a"', bytes(2**24))), FORM)
    yield Sent("a head that never ends", "POST", path, b"--x\r\na: " + b"b" * 2**20, FORM)
    yield Sent("a form without an end", "POST", path, b"--x\r\n", FORM)
    yield Sent("a form without a boundary", "POST", path, b"a", {"content-type": "multipart/form-data"})
    yield Sent("a form that is none", "POST", path, bytes(2**20), {"content-type": "text/plain"})
    yield Sent("nothing to upload", "POST", path)


def _logins() -> Iterator[Sent]:
    form_of_fields = {"content-type": "application/x-www-form-urlencoded"}
    for name, body in {
        "a wrong key": b"username=a&password=wrong",
        "a long key": b"username=a&password=" + b"a" * 2**20,
        "many fields": b"a=b&" * 2**20,
        "no key": b"",
    }.items():
        yield Sent(name, "POST", "/login", body, form_of_fields, may_be_served=True)  # where there are no keys


def _event_request(name: str, path: str, body: Any, *, may_be_served: bool = False) -> Sent:
    return Sent(name, "POST", path, lambda: json.dumps(body).encode(), JSON, may_be_served)


def _form(name: str, path: str, files: Sequence[tuple[str, bytes]], *, may_be_served: bool = False) -> Sent:
    parts = [(f'name="files"; filename="{name}"', content) for name, content in files]
    return Sent(name, "POST", path, lambda: form(*parts), FORM, may_be_served)
