"""Runs ``lmdeploy batch``: requests go through the gateway's application to an engine in this process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import httpx
from tqdm import tqdm

from lmdeploy.cli.options import engine_config
from lmdeploy.offline.async_engine import AsyncEngine
from lmdeploy.offline.served_requests import LocalClient
from lmdeploy.paths import locate_model
from lmdeploy.serve.client import TritonClient
from lmdeploy.turbomind.checkpoint_files import state_of
from openai_gateway.app import create_app
from openai_gateway.batches.requests import BatchRequest, BatchRequests, count_requests
from openai_gateway.batches.results import Results, ids_in
from openai_gateway.batches.work import Dispatch, Slots, dispatcher, work_through
from openai_gateway.middleware.internal_requests import OpenRequests
from openai_gateway.settings import Settings

# Settings of the engine that decide what is answered; others say how fast, and in which memory.
_DECISIVE = (
    *("dtype", "model_format", "weight_bits", "quant_policy", "session_len", "adapters"),
    *("rope_scaling_factor", "use_logn_attn", "custom_module_map"),
)
_OF_REQUESTS = ("model_name", "backend", "chat_template", "generation_config", "reasoning_parser", "tool_call_parser")
_POLL_SECONDS = 0.5  # seconds between two looks at the progress
_QUIET = 10.0  # seconds between two lines where there is no terminal
_ANY_NUMBER = sys.maxsize
_REQUEST_BYTES = 64 * 1024 * 1024  # of a line: images come in it
_GONE = 503


class BatchError(Exception):
    """The batch cannot continue; the text is for the user."""


def run_file(args: argparse.Namespace, output: Path, errors: Path) -> tuple[int, int]:
    """Answer the requests of a file that have no result yet; return how many were answered, and how many failed.

    Raises `BatchError` if the files are not fit for it, or the engine is gone, and `ValueError` or `OSError` as
    `AsyncEngine`; a file cannot be read or written. ``args``: the options of ``lmdeploy batch``. ``output``,
    ``errors``: where the results go; what they hold already stays.
    """
    if output.resolve() == errors.resolve():
        raise BatchError(f"--errors must be another file than {output}")
    total = count_requests(args.input, _ANY_NUMBER)
    if not total:
        raise BatchError(f"{args.input} has no requests")
    with contextlib.closing(Results(output, errors)) as results:
        requests = BatchRequests(args.input, None, _REQUEST_BYTES)
        if results.done:
            _require_same_input(args.input, requests, (output, errors))
        settings = _decisive_settings(args)
        digest = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()
        name = f"batch_req_{digest[:12]}"  # the ids of results begin with it
        if results.done:
            _require_same_settings(name, settings, (output, errors))
        if len(results.done) < total:
            _run_requests(args, requests, total, results, name)
        return results.completed, results.failed


def _decisive_settings(args: argparse.Namespace) -> dict[str, str]:
    """Return the model and the settings that decide its responses."""
    engine = engine_config(args)
    directory = locate_model(args.model_path, engine.get("revision"), engine.get("download_dir"))
    given = {name: getattr(args, name) for name in _OF_REQUESTS} | {name: engine.get(name) for name in _DECISIVE}
    files = hashlib.sha256(repr(state_of(directory)).encode()).hexdigest()[:12]
    return {"model": f"{directory} (files {files})", **{name: str(value) for name, value in given.items() if value}}


def _require_same_settings(name: str, settings: Mapping[str, str], files: tuple[Path, ...]) -> None:
    """Check that results are of this model with these settings."""
    file = next((file for file in files if any(begin != name for begin, _, _ in ids_in(file))), None)
    if file is not None:
        shown = ", ".join(f"{setting} {value}" for setting, value in settings.items())
        raise BatchError(
            f"{file} has results of another model or with other settings than these: {shown}; name another file, or "
            "remove it to compute all again"
        )


def _require_same_input(path: Path, requests: BatchRequests, files: tuple[Path, ...]) -> None:
    """Check that results are those of this input, not of another."""
    answered = {line: (custom_id, file) for file in files for _, line, custom_id in ids_in(file)}
    for request in requests:
        custom_id, file = answered.pop(request.line, (request.custom_id, path))
        if custom_id != request.custom_id:
            raise BatchError(
                f"{file} has results of another input: its line {request.line} is {custom_id}, in {path} it is "
                f"{request.custom_id}; name another file, or remove it"
            )
    for line, (_, file) in answered.items():
        raise BatchError(f"{file} has results of another input: {path} has no line {line}")


def _run_requests(args: argparse.Namespace, requests: BatchRequests, total: int, results: Results, name: str) -> None:
    config = engine_config(args)
    backend = "pytorch" if args.backend == "pytorch" else None
    print("loading the model ...", file=sys.stderr)
    with AsyncEngine(
        args.model_path, config, args.chat_template or None, model_name=args.model_name or None, backend=backend
    ) as pipe:
        settings = Settings(
            model_name=pipe.model_name,
            max_body_bytes=_REQUEST_BYTES,
            engine_dir=pipe.engine.directory.path,
            chat_template=args.chat_template,
            reasoning_parser=args.reasoning_parser,
            tool_call_parser=args.tool_call_parser,
            tool_call_recovery=args.tool_call_recovery == "on",
            generation_config=args.generation_config,
            allowed_media_hosts=tuple(args.allowed_media_domains) if args.allowed_media_domains else None,
            allowed_media_folder=Path(args.allowed_local_media_path) if args.allowed_local_media_path else None,
            media_in_tool_results=args.media_in_tool_results,
        )
        asyncio.run(_work(pipe, settings, requests, results, total, args.concurrency, name))


async def _work(
    pipe: AsyncEngine,
    settings: Settings,
    requests: BatchRequests,
    results: Results,
    total: int,
    concurrency: int,
    name: str,
) -> None:
    client = cast(TritonClient, LocalClient(pipe))  # all that requests ask of one
    app = create_app(settings, client)
    slots = Slots(concurrency, OpenRequests())
    work = asyncio.create_task(work_through(requests, results, slots, _while_it_lives(dispatcher(app)), name))
    interval = 0.1 if sys.stderr.isatty() else _QUIET
    try:
        with tqdm(total=total, initial=len(results.done), unit="request", mininterval=interval) as bar:
            while not work.done():
                await asyncio.wait((work,), timeout=_POLL_SECONDS)
                bar.update(len(results.done) - bar.n)
                await asyncio.to_thread(results.sync)
        work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        results.sync()


def _while_it_lives(dispatch: Dispatch) -> Dispatch:
    """Return a function that sends requests, and fails once the engine has died: ours is not restarted."""

    async def checked(request: BatchRequest) -> httpx.Response:
        response = await dispatch(request)
        if response.status_code == _GONE:
            raise BatchError("the engine is gone; the same command continues from here")
        return response

    return checked
