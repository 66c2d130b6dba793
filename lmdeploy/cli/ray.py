"""``lmdeploy serve ray``: replicas of a model on Ray Serve, on a cluster or on this machine alone."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lmdeploy.cli.options import engine_config, given_options
from lmdeploy.cli.pull import pulled_or_rejected
from lmdeploy.cli.triton import stop_on_sigterm
from lmdeploy.distribution import install_command
from lmdeploy.extras import MissingExtraError
from lmdeploy.logs import configure
from lmdeploy.serve.ports import reachable_host, require_free
from lmdeploy.serve.ray.settings import FAILED
from lmdeploy.serve.resolved_model import resolved_model

if TYPE_CHECKING:
    from lmdeploy.serve.ray.settings import RaySettings

_APPLICATION = "lmdeploy"
# The command's own options, with their names in `RaySettings`.
_OWN = {
    "replicas": "replicas",
    "max_replicas": "max_replicas",
    "waiting_per_replica": "waiting_per_replica",
    "cpus_per_replica": "cpus",
    "gpus_per_replica": "gpus",
    "drain_seconds": "drain_seconds",
}


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    configure(args.log_level, args.log_format)
    stop_on_sigterm()
    try:
        import ray  # noqa: F401
        from ray import serve  # noqa: F401
    except ImportError:
        raise MissingExtraError(f"Ray Serve is not installed; run: {install_command('ray')}") from None
    _serve(args)
    return 0


def _serve(args: argparse.Namespace) -> None:
    settings = _settings(args)
    import ray
    from ray import serve

    from lmdeploy.serve.ray import app

    is_local = not (args.ray_address or os.environ.get("RAY_ADDRESS"))
    if is_local:
        model = pulled_or_rejected(args.model, args, engine_config(args))  # here once, not in each replica
        resolved_model(model, args.backend, args.chat_template, engine_config(args))
        require_free(args.server_name, args.server_port, "the OpenAI API (--server-port)")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report another host
        os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # Ray's 5 s are too few on a busy machine
    try:
        ray.init(
            address=args.ray_address or ("local" if is_local else None),
            include_dashboard=False if is_local else None,
            logging_level=args.log_level,
            log_to_driver=args.log_level in ("INFO", "DEBUG"),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RuntimeError(f"no cluster of Ray can be used: {error}") from None
    logging.getLogger("ray.serve").setLevel(args.log_level)
    stop_on_sigterm()  # Ray's own handler would end this process at once
    try:
        if is_local:
            _require_room(settings, ray.cluster_resources())
        serve.start(http_options={"host": args.server_name, "port": args.server_port})
        try:
            serve.run(app(settings), name=_APPLICATION, route_prefix="/")
        except RuntimeError as error:
            raise RuntimeError(_reason() or str(error)) from None
        url = f"http://{reachable_host(args.server_name)}:{args.server_port}"
        print(f"serving on Ray\n  OpenAI API  {url}/v1   (documentation: {url}/)\nCtrl-C stops everything.", flush=True)
        threading.Event().wait()
    finally:
        serve.shutdown() if is_local else serve.delete(_APPLICATION)
        ray.shutdown()


def _settings(args: argparse.Namespace) -> RaySettings:
    from pydantic import ValidationError

    from lmdeploy.serve.ray.settings import RaySettings

    settings_given = {field: getattr(args, name) for name, field in _OWN.items()}
    options = given_options(args.of_replicas, args)
    if args.api_keys:
        options["api-keys"] = args.api_keys
    try:
        return RaySettings(model=args.model, options=options, **settings_given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where + ': ' if where else ''}{first['msg']}") from None


def _require_room(settings: RaySettings, there: Mapping[str, float]) -> None:
    """Check that the replicas fit on this machine: Ray would wait for another one, forever."""
    for name, per_replica in (("CPU", settings.cpus), ("GPU", settings.gpus)):
        needed, has = per_replica * (settings.max_replicas or settings.replicas), there.get(name, 0)
        if needed > has:
            raise ValueError(
                f"the replicas need {needed:g} {name}s and this machine has {has:g}; ask for fewer with "
                f"--{name.lower()}s-per-replica, or name a cluster with --ray-address"
            )


def _reason() -> str:
    """Return the error of a replica that could not start, extracted from Ray's report."""
    from ray import serve

    application = serve.status().applications.get(_APPLICATION)
    message = application.deployments["replica"].message if application and "replica" in application.deployments else ""
    _, found, reason = message.rpartition(FAILED)
    return (FAILED + reason).strip() if found else message.strip()
