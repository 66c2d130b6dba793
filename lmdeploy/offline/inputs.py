"""Normalization of user input to the offline API: a batch of prompts, a config for each."""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.errors import unknown_keyword
from lmdeploy.messages import GenerationConfig
from lmdeploy.model_metadata.sampling_defaults import is_greedy
from lmdeploy.prompts import Prompt

logger = logging.getLogger(__name__)

GenConfigs = GenerationConfig | list[GenerationConfig] | None

_FIELDS = [field.name for field in dataclasses.fields(GenerationConfig)]
_OLDER_NAMES = {"request_output_len": "max_new_tokens"}  # of LMDeploy before 0.2.0
_FOR_SAMPLING = ("top_p", "top_k", "min_p", "temperature", "random_seed")


def as_batch(prompts: str | Sequence[Any]) -> tuple[Sequence[Prompt], bool]:
    """Return the prompts as a batch, and whether there was just one.

    Raises `ValueError` if they are no text, ``(text, image)``, conversation, or list of these.
    """
    if isinstance(prompts, (str, tuple)):
        return [prompts], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise ValueError(
            f"prompts must be a text, (text, image), a list of these, or messages, got {type(prompts).__name__}"
        )
    if prompts and isinstance(prompts[0], dict):
        return [list(prompts)], True
    return prompts, False


def configs_for(
    gen_config: GenConfigs, count: int, keywords: Mapping[str, Any], sampling_defaults: Mapping[str, Any]
) -> list[GenerationConfig]:
    """Return a config for each of ``count`` prompts.

    Raises `ValueError` if there is a list of another length, or a value is out of range, and `TypeError` if there is no
    such field. ``gen_config``: one for all prompts, or one each. ``keywords``: fields by name, which go before those of
    ``gen_config``. ``sampling_defaults``: the model's (`lmdeploy.model_metadata.sampling_defaults`), for configs that
    sample and do not set them.
    """
    if isinstance(gen_config, list):
        if len(gen_config) != count:
            raise ValueError(f"gen_config must be one, or one for each of the {count} prompts, got {len(gen_config)}")
        return [config_with(config, keywords, sampling_defaults) for config in gen_config]
    return [config_with(gen_config, keywords, sampling_defaults)] * count


def config_with(
    gen_config: GenerationConfig | None, keywords: Mapping[str, Any], sampling_defaults: Mapping[str, Any]
) -> GenerationConfig:
    """Return a config, ``GenerationConfig()`` if there is none, with some fields changed; see ``configs_for``."""
    if gen_config is not None and not isinstance(gen_config, GenerationConfig):
        raise ValueError(f"gen_config must be a GenerationConfig or a list of them, got {type(gen_config).__name__}")
    changes = {_OLDER_NAMES.get(name, name): value for name, value in keywords.items()}
    for name in changes:
        if name not in _FIELDS:
            raise TypeError(unknown_keyword(name, _FIELDS))
    base = gen_config or GenerationConfig()
    values = {**vars(base), **changes}
    if values["do_sample"] and not is_greedy(values["temperature"], values["top_k"], values["top_p"]):
        changes = {name: value for name, value in sampling_defaults.items() if not base.is_given(name)} | changes
    config = dataclasses.replace(base, **changes)
    if not config.do_sample:
        _warn_of_greedy(tuple(name for name in _FOR_SAMPLING if getattr(config, name) != getattr(_DEFAULT, name)))
    return config


_DEFAULT = GenerationConfig()


@functools.cache  # once a process for the same fields
def _warn_of_greedy(names: tuple[str, ...]) -> None:
    if names:
        logger.warning("do_sample is False: decoding is greedy, and %s has no effect", ", ".join(names))
