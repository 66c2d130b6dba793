"""Builders of `ModelConfig`: which fields of a model's configuration hold its sizes."""

from lmdeploy.pytorch.configurations.builder import AutoModelConfigBuilder, DefaultModelConfigBuilder

__all__ = ["AutoModelConfigBuilder", "DefaultModelConfigBuilder"]
