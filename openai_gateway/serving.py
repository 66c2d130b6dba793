"""Serve a gateway until told to stop, in one process or several."""

from __future__ import annotations

from collections.abc import Callable

from openai_gateway.listening import Listening
from openai_gateway.settings import Settings


def serve_until_stopped(
    settings: Settings, listening: Listening, *, workers: int, on_ready: Callable[[], None]
) -> None:
    """Block until SIGINT, or whatever signal the caller turned into an exception.

    Raises
    ------
    WorkerError
        Several processes were wanted, and one did not start.
    QosConfigError
        The policy file is unusable.
    """
    if workers == 1:
        from openai_gateway.server import GatewayServer

        GatewayServer(settings, listening, on_ready).run()
        return
    from openai_gateway.qos import Qos
    from openai_gateway.worker import Assignment
    from openai_gateway.workers import Workers

    if settings.qos_config_path is not None:
        Qos.load(settings.qos_config_path)  # say what is wrong once, here
    Workers(Assignment(settings, listening), workers, on_ready).run()
