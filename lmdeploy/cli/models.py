"""``lmdeploy ps`` and ``lmdeploy stop``: list the models of a running server, and unload one."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from lmdeploy.cli.key_options import add_key
from lmdeploy.units import size_text
from openai_gateway.settings import DEFAULT_PORT

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_URL = f"http://localhost:{DEFAULT_PORT}"
_TITLES = ("NAME", "STATE", "MEMORY", "LAST USED", "SLEEPS IN", "WAITING")
_UNITS = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
_SECONDS = 10.0  # in which the list comes


def add_parser(subparsers: Subparsers) -> None:
    """Add both subcommands to the command line."""
    listing = subparsers.add_parser(
        "ps",
        help="List the models of a running server.",
        description="List the models of a running server: which are in memory, how much they have, and until when.",
    )
    listing.set_defaults(run=_run_ps)
    stopping = subparsers.add_parser(
        "stop",
        help="Take a model of a running server out of memory.",
        description="Take a model of a running server out of memory once its open requests have ended. The next "
        "request loads it again.",
    )
    stopping.add_argument("model", metavar="NAME", help="Name of the model, as in `lmdeploy ps`.")
    stopping.set_defaults(run=_run_stop)
    for parser in (listing, stopping):
        parser.add_argument("url", nargs="?", default=_URL, metavar="URL", help="The server (default: %(default)s).")
        add_key(parser, "api-key", "API key of the server, if it requires one")


def _run_ps(args: argparse.Namespace) -> int:
    listed = _requested(args, "GET", "/v1/models", timeout=_SECONDS)
    models = [card for card in listed["data"] if card["parent"] is None and card["root"] == card["id"]]
    table = [_TITLES, *map(_row, models)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if budget := listed.get("memory_budget"):
        print(f"all models: {size_text(listed['memory_bytes'] or 0)} of {size_text(budget)}")
    for model in models:
        if model.get("load_error"):
            print(f"{model['id']} could not be loaded: {model['load_error']}")
    return 0


def _run_stop(args: argparse.Namespace) -> int:
    body = {"model": args.model, "keep_alive": 0}
    _requested(args, "POST", "/api/generate", json=body, timeout=None)  # as long as its open requests take
    return 0


def _requested(args: argparse.Namespace, method: str, path: str, **more: Any) -> Any:
    import httpx

    url = args.url if "://" in args.url else f"http://{args.url}"
    headers = {"authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
        response = http.request(method, path, **more)
    if not response.is_success:
        try:
            error = response.json()["error"]
            text = error if isinstance(error, str) else error["message"]
        except (ValueError, KeyError, TypeError):
            text = f"{response.status_code} {response.reason_phrase}: is it a server of lmdeploy?"
        raise RuntimeError(f"{url}: {text}")
    return response.json()


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    state, memory, last_used = (model.get(name) for name in ("state", "memory_bytes", "last_used"))
    if state is None:  # its engine keeps it for good
        return (model["id"], "awake", "-", "-", "never", "0")
    ago = 0.0 if last_used is None else time.time() - last_used
    sleeps_in = model.get("sleeps_in")
    ends = "-" if state != "awake" else "never" if sleeps_in is None else _span(sleeps_in)
    used = "now" if ago < 2 else f"{_span(ago)} ago"
    return (model["id"], state, size_text(memory) if memory else "-", used, ends, str(model["waiting_requests"]))


def _span(seconds: float) -> str:
    """Return a time in its largest unit: ``5 minutes``."""
    unit, length = next((unit for unit in _UNITS if seconds >= unit[1]), _UNITS[-1])
    count = int(seconds / length)
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
