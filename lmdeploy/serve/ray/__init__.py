"""A model on Ray Serve (docs/deployment/ray.md): ``serve run`` and ``serve deploy`` import ``lmdeploy.serve.ray:app``.

    Ray's HTTP proxy -> Ingress (ingress.py): openai_gateway.proxy --- HTTP ---> lmdeploy serve api_server
                                          | asks for their addresses                 | owned by
                                          +--------------------------> Replica (replica.py), 1 or more

A replica is an actor of Ray that owns one ``lmdeploy serve api_server``, tritonserver and all, on ports of its own.
Importing the package imports no Ray: what else it holds can be used without.
"""

from typing import TYPE_CHECKING, Any

from lmdeploy.serve.ray.settings import RaySettings

if TYPE_CHECKING:
    from lmdeploy.serve.ray.application import app

__all__ = ["RaySettings", "app"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lmdeploy.serve.ray.application import app

    return app
