"""The registry of chat templates, and how a family puts its own into it."""

import functools
from collections.abc import Mapping
from typing import Any

from lmdeploy.templates.families.aliases import ALIASES
from lmdeploy.templates.registry import Registry
from lmdeploy.templates.strings import BaseChatTemplate

MODELS = Registry(ALIASES)


def builtin(
    name: str, strings: Mapping[str, Any], template: type[BaseChatTemplate] = BaseChatTemplate, **changes: Any
) -> None:
    """Register a built-in template.

    Parameters
    ----------
    name
        What users call it.
    strings
        Arguments of ``template``.
    template
        The class that writes it.
    changes
        Go before those in ``strings``.
    """
    MODELS.register_module(name)(functools.partial(template, **{**strings, **changes}))
