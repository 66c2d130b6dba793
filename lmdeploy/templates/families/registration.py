"""Registry of chat templates, their aliases, and registration of a family."""

import functools
from collections.abc import Mapping
from typing import Any

from lmdeploy.templates.registry import Registry
from lmdeploy.templates.strings import BaseChatTemplate

# Other names of the built-in templates: names LMDeploy once had, and the names of models that share a format.
ALIASES = {
    "baichuan-chat": "baichuan",
    "baichuan2-chat": "baichuan2",
    "chatglm2": "chatglm",
    "chatglm2-6b": "chatglm",
    "deepseek-chat": "deepseek",
    "deepseek-moe": "deepseek",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v2": "deepseek",
    "deepseek-v2.5": "deepseek-v3",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "internlm-chat": "internlm",
    "internlm-chat-20b": "internlm",
    "internlm-chat-7b": "internlm",
    "internlm-chat-7b-8k": "internlm",
    "internlm2-chat": "internlm2",
    "internlm2-chat-1_8b": "internlm2",
    "internlm2-chat-20b": "internlm2",
    "internlm2-chat-7b": "internlm2",
    "internlm2_5": "internlm2",
    "llama-2": "llama2",
    "llama-2-chat": "llama2",
    "llama3_3": "llama3_1",
    "phi-3.5": "phi-3",
    "qwen-14b": "qwen",
    "qwen-72b": "qwen",
    "qwen-7b": "qwen",
    "qwen1d5": "qwen",
    "qwen2": "qwen",
    "solar-70b": "solar",
    "yi-200k": "yi",
    "yi-34b": "yi",
    "yi-chat": "yi",
}
MODELS = Registry(ALIASES)


def builtin(
    name: str, strings: Mapping[str, Any], template: type[BaseChatTemplate] = BaseChatTemplate, **changes: Any
) -> None:
    """Register a built-in template.

    ``name``: what users call it. ``strings``: arguments of ``template``. ``template``: the class that writes it.
    ``changes``: go before those in ``strings``.
    """
    MODELS.register_module(name)(functools.partial(template, **{**strings, **changes}))
