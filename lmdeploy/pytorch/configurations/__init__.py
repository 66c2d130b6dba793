"""Builders of `ModelConfig`: which fields of a model's configuration hold its sizes."""

from lmdeploy.pytorch.configurations.builder import AutoModelConfigBuilder
from lmdeploy.pytorch.configurations.chatglm import ChatGLMModelConfigBuilder
from lmdeploy.pytorch.configurations.default import DefaultModelConfigBuilder

__all__ = ["AutoModelConfigBuilder", "ChatGLMModelConfigBuilder", "DefaultModelConfigBuilder"]
