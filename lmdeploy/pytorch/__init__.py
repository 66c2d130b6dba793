"""Where LMDeploy before 0.2.0 had the settings of its PyTorch engine."""

from lmdeploy.messages import PytorchEngineConfig as EngineConfig

__all__ = ["EngineConfig"]
