"""A supervised tritonserver for the length of a command."""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NoReturn

from lmdeploy.cli.options import engine_config
from lmdeploy.cli.pull import pulled_or_rejected
from lmdeploy.logs import Stopping
from lmdeploy.model import name_for_older_clients
from lmdeploy.paths import cache_root
from lmdeploy.scratch import Scratch
from lmdeploy.serve.errors import TritonStartError
from lmdeploy.serve.ports import Ports
from lmdeploy.serve.resolved_model import resolved_model
from lmdeploy.serve.restrictions import is_loopback
from lmdeploy.serve.supervisor import Supervisor
from lmdeploy.serve.tritonserver import TritonServer
from lmdeploy.turbomind.repository import copy_models

_LOG_BYTES = 10 * 1024 * 1024
_TALKATIVE = ("INFO", "DEBUG")  # log levels
_OPEN_DOOR = (
    "warning: tritonserver listens on {host}, and has neither keys nor encryption: whoever reaches its ports can use "
    "the model. Close ports {ports} to all but trusted machines (docs/deployment/security.md), or leave out "
    "--triton-server-name."
)


@dataclass(frozen=True)
class ServedModel:
    """A model, or several, in a tritonserver that was started."""

    name: str  # what it is called, for people too
    server: TritonServer
    log_file: Path
    supervisor: Supervisor
    chat_template: str = ""  # of one model, as asked for; empty: its own
    engine_dir: Path | None = None  # of one model
    models_dir: Path | None = None  # the registry's folder of several

    def wait_ready(self) -> None:
        """Return once the model can be used; from then on the server is started again when it dies.

        Raises `TritonStartError` if it could not be loaded.
        """
        with _progress(f"loading {self.name} into tritonserver") as progress:
            self.server.wait_ready(progress=progress)
        for name, error in self.server.unloaded.items():
            print(f"warning: model {name} could not be loaded: {error}", file=sys.stderr, flush=True)
        self.supervisor.start()


def stop_on_sigterm() -> None:
    """Make SIGTERM end this process the way Ctrl-C does, so that what was started is stopped; both are announced."""

    def stop(signum: int, frame: object) -> NoReturn:
        Stopping.announce()
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + signum)

    Stopping.begin()
    for signum in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, stop)


@contextmanager
def served_model(model: str, args: argparse.Namespace) -> Iterator[ServedModel]:
    """Start a tritonserver with `model`, which is loaded while the caller continues, and stop it in the end.

    Raises `ValueError`, `OSError`, `MissingExtraError` or `TritonStartError` if the model, an option or tritonserver is
    not fit to start with. ``model``: a path, or a name on a hub; empty: the default model. ``args``: with the options
    of ``add_engine_options``, ``add_triton_options``, ``add_server_options`` and ``add_pull_options``.
    """
    settings = engine_config(args)
    model = pulled_or_rejected(model, args, settings)
    made = resolved_model(model, args.backend, args.chat_template, settings)
    engine_dir, name = made.engine.path, args.model_name or made.name
    log_file, log = open_log(args)
    with Scratch(Path(gettempdir()), "lmdeploy-models-") as repository:
        # Clients read the names in the model's config, which knows nothing of our environment.
        older_name = name_for_older_clients(args.model_name, str(engine_dir), made.chat_template)
        copy_models(repository, {"turbomind": {"model_name": older_name, "served_model_name": name}})
        server = TritonServer(
            repository,
            model_path=str(engine_dir),
            model_name=name,
            chat_template=made.chat_template,
            engine_config=made.settings,
            log=log.info,
            **server_settings(args),
        )
        if not is_loopback(args.triton_server_name):
            ports = ", ".join(str(port) for port in (server.ports.http, server.ports.grpc, server.ports.metrics))
            print(_OPEN_DOOR.format(host=args.triton_server_name, ports=ports), file=sys.stderr)
        with started(server, log_file) as supervisor:
            yield ServedModel(name, server, log_file, supervisor, made.chat_template, engine_dir=engine_dir)


@contextmanager
def started(server: TritonServer, log_file: Path) -> Iterator[Supervisor]:
    """Start a server, and stop it in the end; raise `TritonStartError` if it, or a model of it, cannot be started."""
    supervisor = Supervisor(server)
    try:
        server.start()
        yield supervisor
    except TritonStartError as error:
        if not server.pid:
            raise
        raise TritonStartError(f"{error}\n(whole log: {log_file})") from None
    finally:
        supervisor.stop()


def server_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the tritonserver settings that do not depend on the model."""
    return {
        "ports": Ports(args.triton_http_port, args.triton_grpc_port, args.triton_metrics_port),
        "host": args.triton_server_name,
        # Only `api_server` has these options.
        "max_log_len": max(0, getattr(args, "max_log_len", 0)) if args.log_level in _TALKATIVE else 0,
        "split_special_tokens": getattr(args, "split_special_tokens", False),
        "trace_url": _trace_url(args),
        "idle_timeout": args.idle_timeout,
        "models_memory": getattr(args, "models_memory", None),
    }


def _trace_url(args: argparse.Namespace) -> str:
    """Return where tritonserver sends its spans: it writes no file of the gateway's kind. Some commands have none."""
    endpoint: str = getattr(args, "trace_endpoint", None) or ""
    return endpoint if endpoint.startswith("http") else ""


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log of this user's alone. Its disk may fill up: that is said once, and costs the lines that do not fit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_LOG_BYTES, backupCount=2, encoding="utf-8")
        self._is_reported = False

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_private)

    def handleError(self, record: logging.LogRecord) -> None:
        if not self._is_reported:
            self._is_reported = True
            print(f"warning: {self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr, flush=True)


def _open_private(path: str, flags: int) -> int:
    """Open a file that other users cannot read, also one of an earlier start; an opener for `open`."""
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)
    return descriptor


def open_log(args: argparse.Namespace) -> tuple[Path, logging.Logger]:
    """Return the file and the logger of tritonserver's lines: to a file always, to ours only when we are talkative."""
    path = cache_root() / "logs" / f"tritonserver-{args.triton_grpc_port}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("tritonserver")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = args.log_level in _TALKATIVE
    return path, logger


class _Progress:
    """Reports on stderr how long something has taken: on one line of a terminal, else every ten seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = 0.0
        self._terminal = sys.stderr.isatty()

    def __call__(self, seconds: float) -> None:
        if seconds < self._next:
            return
        self._next = seconds + (1 if self._terminal else 10)
        start, end = ("\r", "") if self._terminal else ("", "\n")
        print(f"{start}{self._what}: {seconds:.0f} s ", end=end, file=sys.stderr, flush=True)

    def done(self) -> None:
        if self._terminal and self._next:
            print(file=sys.stderr)


@contextmanager
def _progress(what: str) -> Iterator[_Progress]:
    progress = _Progress(what)
    try:
        yield progress
    finally:
        progress.done()
