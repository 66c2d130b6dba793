"""Import path of LMDeploy before 0.2.0 for the settings of its PyTorch engine."""

from lmdeploy.messages import PytorchEngineConfig as EngineConfig

__all__ = ["EngineConfig"]
