"""Fields of configurations that older releases of LMDeploy had: accepted, and answered with a sentence."""

import logging
from collections.abc import Mapping
from functools import wraps
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

_Class = TypeVar("_Class", bound=type)

_BITS = (
    "quant_policy=4 means a cache of 4 bits, as since LMDeploy 0.4; the releases that had %s meant 8 bits by it: say "
    "quant_policy=8 for those"
)


def accept_older_fields(cls: _Class, fields: Mapping[str, str]) -> _Class:
    """Let a dataclass be made with fields it does not have, which say nothing.

    Parameters
    ----------
    cls
        The dataclass; its ``__init__`` logs a warning for each older field, and one if ``quant_policy`` may be meant
        as in the releases that had it.
    fields
        Name of an older field: the sentence that says what is to be used instead.
    """
    original: Any = cls.__init__  # type: ignore[misc]

    @wraps(original)
    def init(self: Any, *args: Any, **given: Any) -> None:
        older = [name for name in given if name in fields]
        original(self, *args, **{name: value for name, value in given.items() if name not in fields})
        for name in older:
            logger.warning("%s has no effect: %s", name, fields[name])
        if older and self.quant_policy == 4:
            logger.warning(_BITS, ", ".join(older))

    cls.__init__ = init  # type: ignore[misc]
    cls.older_fields = tuple(fields)  # type: ignore[attr-defined]
    return cls
