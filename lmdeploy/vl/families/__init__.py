"""The families of vision-language models: each `VisionFamily` of a module of this package."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType

from lmdeploy.vl.families.common import VisionFamily


@functools.cache
def vision_families() -> Mapping[tuple[str, str], VisionFamily]:
    """Return the family of each supported architecture and tower (empty: any other)."""
    found: dict[tuple[str, str], VisionFamily] = {}
    for module in pkgutil.iter_modules(__path__):
        for family in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(family, VisionFamily):
                found |= {(architecture, family.tower): family for architecture in family.architectures}
    return MappingProxyType(found)
