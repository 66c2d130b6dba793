"""The model families: what each architecture's config.json and tensor names mean for the engine.

Each `Family` of a module of this package; variants of one vendor share a module. docs/internals/new-model.md adds one.
"""

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.families.common import Family

_RENAMED = {"LLaMAForCausalLM": "LlamaForCausalLM"}  # the name of the first conversions


@functools.cache
def families() -> Mapping[str, Family]:
    """Return the family of each supported architecture."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__):
        for family in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(family, Family):
                found |= dict.fromkeys(family.architectures, family)
    return MappingProxyType(found)


def family_of(architectures: object) -> tuple[str, Family]:
    """Return name and family of the first supported one of config.json's ``architectures``.

    Raises `UnsupportedModelError` if none is supported; names them and the supported one with the nearest name.
    """
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    supported = families()
    for name in (_RENAMED.get(name, name) for name in names):
        if name in supported:
            return name, supported[name]
    if not names:
        raise UnsupportedModelError("config.json names no architecture; expected one in 'architectures'")
    by_lower = {name.lower(): name for name in supported}
    (nearest,) = difflib.get_close_matches(names[0].lower(), by_lower, n=1, cutoff=0.0)
    raise UnsupportedModelError(
        f"architecture {', '.join(names)} is not supported: no family describes it; the nearest supported one is "
        f"{by_lower[nearest]} (docs/reference/supported-models.md lists all, docs/internals/new-model.md adds one)"
    )
