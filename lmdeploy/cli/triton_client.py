"""``lmdeploy serve triton_client``: talk in the terminal to a model that a Triton serves."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
from typing import Any

from lmdeploy.cli.terminal import SAMPLING_DEFAULTS, given_sampling, talk
from lmdeploy.serve.client import GenerateRequest, TritonClient, TritonRequestError, TritonUnavailable


def run(args: argparse.Namespace) -> int:
    """Talk until the user leaves; return the exit status."""
    loop = asyncio.new_event_loop()  # it stands still while the user types
    asyncio.set_event_loop(loop)
    finish = loop.run_until_complete
    client = TritonClient(args.address)
    try:
        name = finish(client.model_name())
        conversation = Conversation(client, args)
        talk(name, lambda text: finish(conversation.respond(text)), lambda: finish(conversation.end()))
        with contextlib.suppress(TritonUnavailable):
            finish(conversation.end())
    finally:
        finish(client.close())
        finish(loop.shutdown_asyncgens())
        loop.close()
    return 0


class Conversation:
    """A conversation, and the session that holds it in the engine.

    A turn sends only what is new, unless the engine does not hold the rest as the chat template writes it: at first,
    after a response that was cut off, and when the engine has forgotten the session.
    """

    def __init__(self, client: TritonClient, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args  # with ``session_id`` and the options of ``add_sampling_options``
        self._session_id: int = secrets.randbits(63) if args.session_id is None else args.session_id
        self._beginning = [{"role": "system", "content": args.meta_instruction}] if args.meta_instruction else []
        self._messages: list[dict[str, Any]] = list(self._beginning)
        self._has_begun = False  # the engine knows the session
        self._is_open = False  # and holds the conversation as the chat template writes it

    async def respond(self, text: str) -> None:
        """Print the response to a message as it comes; an error instead leaves the conversation as it was."""
        message = {"role": "user", "content": text}
        try:
            try:
                response = await self._print_response([message], goes_on=True) if self._is_open else None
            except TritonRequestError:
                response = None  # forgotten: begin again with all of it
            if response is None:
                response = await self._print_response([*self._messages, message], goes_on=False)
        except (TritonRequestError, TritonUnavailable) as error:
            print(f"({error})\n")
            self._is_open = False
        else:
            self._messages += [message, {"role": "assistant", "content": response}]

    async def end(self) -> None:
        """Forget the conversation, here and in the engine."""
        self._messages = list(self._beginning)
        self._is_open = False
        if self._has_begun:
            self._has_begun = False
            await self._client.end_session(self._session_id)

    async def _print_response(self, messages: list[dict[str, Any]], goes_on: bool) -> str:
        args = self._args
        request = GenerateRequest(
            messages=messages,
            session_id=self._session_id,
            sequence_start=not goes_on,
            sequence_end=False,
            max_new_tokens=args.max_new_tokens,
            random_seed=args.seed,
            **{**SAMPLING_DEFAULTS, **given_sampling(args)},
        )
        response, reason = "", None
        self._has_begun = True
        with _StopOnInterrupt(self._client, request.request_id):
            async for chunk in self._client.generate(request):
                print(chunk.text, end="", flush=True)
                response, reason = response + chunk.text, chunk.finish_reason
        print({"cancelled": " (stopped)", "length": " (cut off)"}.get(reason or "", "") + "\n", flush=True)
        self._is_open = reason == "stop"
        return response


class _StopOnInterrupt:
    """While it lasts, Ctrl-C cancels a request in the engine; once more, it ends the program."""

    def __init__(self, client: TritonClient, request_id: str) -> None:
        self._client = client
        self._request_id = request_id
        self._cancelling: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._loop.add_signal_handler(signal.SIGINT, self._interrupt)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        if self._cancelling is None:
            self._cancelling = self._loop.create_task(self._client.cancel(self._request_id))
        elif self._task is not None:
            self._task.cancel()
