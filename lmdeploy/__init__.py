"""LLM serving on NVIDIA Triton: an independent implementation of LMDeploy's documented interfaces.

Everything public is imported on first use, so that ``import lmdeploy`` takes milliseconds.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lmdeploy.version import __version__

if TYPE_CHECKING:
    from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, Response, TurbomindEngineConfig
    from lmdeploy.model import ChatTemplateConfig
    from lmdeploy.pipeline import pipeline
    from lmdeploy.serve.api import client
    from lmdeploy.tokenizer import Tokenizer

__all__ = [
    "ChatTemplateConfig",
    "GenerationConfig",
    "PytorchEngineConfig",
    "Response",
    "Tokenizer",
    "TurbomindEngineConfig",
    "__version__",
    "client",
    "pipeline",
    "serve",
]

_HOMES = {
    "ChatTemplateConfig": "lmdeploy.model",
    "GenerationConfig": "lmdeploy.messages",
    "PytorchEngineConfig": "lmdeploy.messages",
    "Response": "lmdeploy.messages",
    "Tokenizer": "lmdeploy.tokenizer",
    "TurbomindEngineConfig": "lmdeploy.messages",
    "client": "lmdeploy.serve.api",
    "pipeline": "lmdeploy.pipeline",
}


def __getattr__(name: str) -> Any:
    if name == "serve":
        return importlib.import_module("lmdeploy.serve")  # a package that can be called
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'lmdeploy' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps a public function's name when the import system binds the submodule of that name (``pipeline``)."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
