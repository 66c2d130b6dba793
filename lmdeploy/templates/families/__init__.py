"""The built-in chat templates, as data: the formats the models' authors published. Importing this registers them."""

from lmdeploy.templates.families import (
    baichuan,
    chatml,
    code,
    deepseek,
    gemma,
    glm,
    gpt_oss,
    internlm,
    llama,
    mistral,
    phi,
    plain,
    qwen,
    smollm3,
    vicuna,
)
from lmdeploy.templates.families.registration import MODELS

__all__ = [
    "MODELS",
    "baichuan",
    "chatml",
    "code",
    "deepseek",
    "gemma",
    "glm",
    "gpt_oss",
    "internlm",
    "llama",
    "mistral",
    "phi",
    "plain",
    "qwen",
    "smollm3",
    "vicuna",
]
