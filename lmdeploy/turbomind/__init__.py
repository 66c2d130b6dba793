"""The C++ engine from Python: checkpoints, engine directories, and the engine in this process."""

from typing import TYPE_CHECKING, Any

from lmdeploy.messages import TurbomindEngineConfig as EngineConfig  # as LMDeploy before 0.2.0 called it

if TYPE_CHECKING:
    from lmdeploy.turbomind.instance import TurboMind

__all__ = ["EngineConfig", "TurboMind"]


def __getattr__(name: str) -> Any:
    if name == "TurboMind":  # loads the engine, which few who import this package want
        from lmdeploy.turbomind.instance import TurboMind

        return TurboMind
    raise AttributeError(f"module 'lmdeploy.turbomind' has no attribute {name!r}")
