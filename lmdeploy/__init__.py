"""LLM serving on NVIDIA Triton: an independent implementation of LMDeploy's documented interfaces.

Everything public is imported on first use, so that ``import lmdeploy`` takes milliseconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lmdeploy.distribution import require_unmixed

require_unmixed()

from lmdeploy.version import __version__, version_info  # noqa: E402 (mixed files may not be importable)

if TYPE_CHECKING:
    from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, Response, TurbomindEngineConfig, VisionConfig
    from lmdeploy.model import ChatTemplateConfig
    from lmdeploy.offline.pipeline import pipeline
    from lmdeploy.serve.api import client
    from lmdeploy.tokenizer import Tokenizer

__all__ = [
    "ChatTemplateConfig",
    "GenerationConfig",
    "PytorchEngineConfig",
    "Response",
    "Tokenizer",
    "TurbomindEngineConfig",
    "VisionConfig",
    "__version__",
    "client",
    "pipeline",
    "serve",
    "version_info",
]

_HOMES = {
    "ChatTemplateConfig": "lmdeploy.model",
    "GenerationConfig": "lmdeploy.messages",
    "PytorchEngineConfig": "lmdeploy.messages",
    "Response": "lmdeploy.messages",
    "Tokenizer": "lmdeploy.tokenizer",
    "TurbomindEngineConfig": "lmdeploy.messages",
    "VisionConfig": "lmdeploy.messages",
    "client": "lmdeploy.serve.api",
    "pipeline": "lmdeploy.offline.pipeline",
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
