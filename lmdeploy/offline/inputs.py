"""What users may hand to the offline API, brought into one form: a batch of prompts, a config for each."""

from collections.abc import Sequence
from typing import Any

from lmdeploy.messages import GenerationConfig
from lmdeploy.prompts import Prompt

GenConfigs = GenerationConfig | list[GenerationConfig] | None


def as_batch(prompts: str | Sequence[Any]) -> tuple[Sequence[Prompt], bool]:
    """Return the prompts as a batch, and whether there was just one.

    Raises
    ------
    ValueError
        If they are no text, list of texts, conversation or list of conversations.
    """
    if isinstance(prompts, str):
        return [prompts], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise ValueError(f"prompts must be a text, a list of texts or messages, got {type(prompts).__name__}")
    if prompts and isinstance(prompts[0], dict):
        return [list(prompts)], True
    return prompts, False


def configs_for(gen_config: GenConfigs, count: int) -> list[GenerationConfig]:
    """Return a config for each of ``count`` prompts.

    Raises
    ------
    ValueError
        If there is a list of another length.
    """
    if isinstance(gen_config, list):
        if len(gen_config) != count:
            raise ValueError(f"gen_config must be one, or one for each of the {count} prompts, got {len(gen_config)}")
        return gen_config
    return [gen_config or GenerationConfig()] * count
