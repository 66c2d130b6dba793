"""Extras of this package: the module that shows one is installed, and the error where it is missing."""

from importlib.util import find_spec

from lmdeploy.distribution import install_command

# Of each extra in pyproject.toml: the modules that code imports of it, alongside those of the extras it includes.
MODULES = {
    "serve": (
        "aiohttp",
        "fastapi",
        "fastapi_offline",
        "grpc",
        "httptools",
        "orjson",
        "prometheus_client",
        "pydantic",
        "python_multipart",
        "starlette",
        "tritonclient",
        "uvicorn",
        "uvloop",
        "yaml",
        "yarl",
    ),
    "webui": ("gradio", "openai"),
    "lite": ("datasets",),
    "vision": ("PIL",),
    "video": ("av",),
    "pytorch": ("triton",),
    "ray": ("ray",),
    "events": ("msgspec", "zmq"),
    "trace": ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"),
}
INCLUDED = {"serve": ("vision",), "video": ("vision",), "webui": ("serve",), "ray": ("serve",)}


class MissingExtraError(ImportError):
    """An extra is not installed; the text names it."""


def require(extra: str, purpose: str) -> None:
    """Make sure that an extra is installed, without importing any of it.

    ``extra``: its name in pyproject.toml. ``purpose``: what needs it: the subject of the sentence for the user. Raises
    `MissingExtraError`: it is not, or not all of it.
    """
    missing = [name for name in _modules(extra) if not _is_there(name)]
    if missing:
        raise MissingExtraError(
            f"{purpose} needs packages that are not installed ({', '.join(missing)}); run: {install_command(extra)}"
        )


def _modules(extra: str) -> list[str]:
    included = [name for part in INCLUDED.get(extra, ()) for name in _modules(part)]
    return [*MODULES[extra], *included]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package it would be in
        return False
