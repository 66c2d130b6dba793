"""The built-in chat templates, as data: the formats the models' authors published. Importing this registers them."""

from lmdeploy.templates.families import chatml, deepseek, glm, internlm, llama, mistral, plain, qwen
from lmdeploy.templates.families.registration import MODELS

__all__ = ["MODELS", "chatml", "deepseek", "glm", "internlm", "llama", "mistral", "plain", "qwen"]
