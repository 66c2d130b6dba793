"""The C++ engine from Python: checkpoints, engine directories, and the engine in this process."""

from lmdeploy.messages import TurbomindEngineConfig as EngineConfig  # as LMDeploy before 0.2.0 called it

__all__ = ["EngineConfig"]
