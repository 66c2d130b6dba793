"""``lmdeploy serve api_client``: talk in the terminal to a running API server."""

from __future__ import annotations

import argparse
import contextlib

from lmdeploy.cli.terminal import talk
from lmdeploy.serve.openai.api_client import APIClient


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves; return the exit status."""
    session: int = args.session_id
    with APIClient(args.api_server_url, args.api_key) as client:
        models = client.available_models
        if models is None:
            raise RuntimeError(f"{client.api_server_url} does not list its models; is --api-key right?")
        talk(
            ", ".join(models),
            lambda text: _print_response(client, text, session),
            lambda: client.end_session(session),
        )
        client.end_session(session)
    return 0


def _print_response(client: APIClient, text: str, session: int) -> None:
    """Print a response as it comes; Ctrl-C stops it."""
    try:
        with contextlib.closing(client.chat(text, session, stream=True)) as pieces:  # type: ignore[type-var]
            for piece, _, reason in pieces:
                print(piece, end="\n(cut off)" if reason == "length" else "", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    except RuntimeError as error:
        print(f"({error})", end="")
    print("\n")
