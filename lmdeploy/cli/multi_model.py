"""A supervised tritonserver with several models for the length of a command."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

from lmdeploy.cli.options import engine_config
from lmdeploy.cli.pull import pulled_or_rejected
from lmdeploy.cli.triton import ServedModel, open_log, server_settings, started
from lmdeploy.paths import DEFAULT_MODEL_NAME
from lmdeploy.scratch import Scratch
from lmdeploy.serve.errors import TritonRequestError, TritonUnavailable
from lmdeploy.serve.multi_model.administration import Administration
from lmdeploy.serve.multi_model.placing import place_first
from lmdeploy.serve.multi_model.prepare import prepare
from lmdeploy.serve.multi_model.registry import Registry
from lmdeploy.serve.multi_model.requested import RequestedModel, from_arguments, read_models_file, require_distinct
from lmdeploy.serve.restrictions import is_loopback
from lmdeploy.serve.tritonserver import TritonServer

logger = logging.getLogger(__name__)


@contextmanager
def served_models(args: argparse.Namespace) -> Iterator[ServedModel]:
    """Start a tritonserver with the models of the command line and its file, and stop it in the end.

    Raises as `lmdeploy.cli.triton.served_model`.
    """
    requested = _requested_models(args)
    prepared = [prepare(model, engine_config(args).get("session_len")) for model in requested]
    log_file, log = open_log(args)
    with Scratch(Path(gettempdir()), "lmdeploy-models-") as folder:
        registry = Registry(folder)
        place_first(registry, prepared, args.drain_seconds, args.models_memory, args.idle_timeout)
        settings = server_settings(args) | {"idle_timeout": None}  # each model has its own
        server = TritonServer(registry.repository, models=registry, log=log.info, **settings)
        names = ", ".join(model.name for model in requested)
        with started(server, log_file) as supervisor:
            if args.models_file:
                changes = Administration(registry, server.grpc_address, server.repository_key, args.drain_seconds)
                _follow_file(lambda: _requested_models(args), requested, registry, changes)
            yield ServedModel(names, server, log_file, supervisor, models_dir=registry.folder)


def _follow_file(
    read: Callable[[], Sequence[RequestedModel]],
    served: Sequence[RequestedModel],
    registry: Registry,
    administration: Administration,
) -> None:
    """Load and unload models on SIGHUP so that they are those of the file; one that cannot be read changes nothing."""
    lock, known = threading.Lock(), {model.name: model for model in served}

    async def change() -> None:
        try:
            requested = {model.name: model for model in await asyncio.to_thread(read)}
        except (ValueError, OSError) as error:
            logger.error("%s; the models stay as they are", error)
            return
        for name in [name for name, model in known.items() if requested.get(name) != model]:
            if name not in _names(registry) or await _try(name, administration.unload(name)):
                del known[name]
        new = [model for name, model in requested.items() if name not in _names(registry)]
        known.update({model.name: model for model in new if await _try(model.name, administration.load(model))})

    def run() -> None:
        with lock:
            asyncio.run(change())

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as of nohup
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=run, daemon=True).start())


def _names(registry: Registry) -> set[str]:
    return {entry.name for entry in registry.models()}


async def _try(name: str, changing: Awaitable[None]) -> bool:
    try:
        await changing
    except (TritonRequestError, TritonUnavailable) as error:
        logger.error("model %s: %s", name, error)
        return False
    return True


def _requested_models(args: argparse.Namespace) -> Sequence[RequestedModel]:
    if args.model_name:
        raise ValueError("--model-name is for one model; name several by NAME=PATH, or in --models-file")
    if not is_loopback(args.triton_server_name):
        raise ValueError(
            f"--triton-server-name {args.triton_server_name}: a tritonserver of several models listens on this machine "
            "only, as whoever loads models decides what it runs; leave the option out"
        )
    common = {"chat_template": args.chat_template, "backend": args.backend, "engine": engine_config(args)}
    given = [path for path in (args.model, *args.more_models) if path]
    models = from_arguments(given or ([] if args.models_file else [DEFAULT_MODEL_NAME]), common)
    if args.models_file:
        models += read_models_file(Path(args.models_file), common)
    require_distinct([model.name for model in models])
    return [replace(model, path=pulled_or_rejected(model.path, args, model.engine)) for model in models]
