"""Declaration of a configuration field: its default, the values it allows and its description.

A dataclass declares its fields with the functions of this module, and `fields_of` then returns a `FieldInfo` for
each. Checks (`require_valid`), documentation (`documented`), command-line options, tensors of Triton and the C++
structs are all made from these, the last two by ``make fields``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from lmdeploy import checks
from lmdeploy.errors import nearest_of

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

MAX_INT32 = 2**31 - 1  # counts and token ids travel as int32
MAX_SEED = 2**64 - 1

_KEY = "info"
_Class = TypeVar("_Class", bound=type)
_Table = TypeVar("_Table")


class Kind(Enum):
    """Type of a field."""

    BOOLEAN = "bool"
    INTEGER = "int"
    NUMBER = "float"
    SEED = "uint64"
    STRING = "str"
    STRINGS = "list of str"
    TOKENS = "list of token ids"
    BIASES = "dict of token id to float"
    JSON = "JSON object"
    NAMES = "dict of str to str"
    OTHER = "object"


@dataclass(frozen=True, kw_only=True)
class FieldInfo:
    """One field."""

    # As in the dataclass
    name: str = ""
    default: Any = None
    kind: Kind  # what it holds; None is allowed as well where it is the default or ``is_optional``
    description: str  # what it does, for documentation and ``--help``
    is_optional: bool = False
    # Range of a number: ``low <= value <= high`` and ``value > above``
    low: float | None = None
    high: float | None = None
    above: float | None = None
    # Where the tensor allows lower numbers than the Python field, which ``description`` then explains
    wire_low: int | None = None
    choices: tuple[Any, ...] = ()  # the values allowed
    # Of a list, and of each string as UTF-8
    max_items: int | None = None
    max_bytes: int | None = None
    # Value that the engine takes None for; the default None: the engine can see that nothing was given
    none_means: Any = None
    also: tuple[str, ...] = ()  # other names of it among a Triton request's parameters: those of Triton's vLLM backend
    # A tensor of the models ``turbomind`` and ``ensemble``; what is not is a parameter of their requests
    is_tensor: bool = False
    is_param: bool = False  # read into the C++ struct ``GenerationFields``
    is_in_bodies: bool = False  # a member of the JSON bodies of the HTTP API, under its own name
    makes_sampling: bool = False  # a request that has its tensor samples, unless ``do_sample`` says otherwise
    # The value of a field about the choice of a token that asks for nothing; makes it a member of ``SamplingFields``
    off: float | None = None
    tensor_default: str = ""  # default reported alongside the tensor, where it is not `default`
    no_effect: str = ""  # why the field does nothing; setting it logs this

    @property
    def range_text(self) -> str:
        """The range in words, e.g. ``in [0, 2]`` or ``>= 1``; empty without one."""
        if self.choices and self.kind is not Kind.JSON:
            return "one of " + ", ".join(str(choice) for choice in self.choices if choice is not None)
        low, high = (f"{limit:g}" if limit is not None else "" for limit in (self.low, self.high))
        if self.above is not None:
            return f"in ({self.above:g}, {high}]" if high else f"> {self.above:g}"
        if low and high and self.high not in (MAX_INT32, MAX_SEED):
            return f"in [{low}, {high}]"
        return f">= {low}" if low else ""

    def problem(self, value: Any) -> str | None:
        """Return the error of `value`, in a sentence that names the field; None if it is valid."""
        if value is None and (self.default is None or self.is_optional):
            return None
        if self.choices and self.kind is not Kind.JSON:
            return checks.one_of(self.name, value, self.choices)
        match self.kind:
            case Kind.BOOLEAN:
                return checks.flag(self.name, value)
            case Kind.INTEGER | Kind.SEED:
                high = int(self.high) if self.high is not None else MAX_INT32
                return checks.whole(self.name, value, int(self.low or 0), high)
            case Kind.NUMBER:
                bounds = {"above": self.above, "low": self.low, "high": self.high}
                return checks.finite(self.name, value, **{k: v for k, v in bounds.items() if v is not None})
            case Kind.STRING:
                return checks.optional_text(self.name, value, self.max_bytes)
            case Kind.STRINGS:
                return checks.strings(self.name, value, self.max_items, self.max_bytes)
            case Kind.TOKENS:
                return checks.token_ids(self.name, value, self.max_items)
            case Kind.BIASES:
                return checks.token_biases(self.name, value, self.max_items)
            case Kind.JSON:
                words = "".join(f"{word!r} or " for word in self.choices)
                is_fine = isinstance(value, Mapping) or (isinstance(value, str) and value in self.choices)
                return None if is_fine else f"{self.name} must be {words}a dict, got {value!r}"
            case Kind.NAMES:
                is_fine = isinstance(value, Mapping) and all(
                    isinstance(text, str) and text for item in value.items() for text in item
                )
                return None if is_fine else f"{self.name} must be a dict of non-empty texts, got {value!r}"
        return None


def _field(info: FieldInfo) -> Any:
    return dataclasses.field(default=info.default, metadata={_KEY: info})


def boolean(default: bool | None, description: str, **more: Any) -> Any:
    """Declare a field that is true or false."""
    return _field(FieldInfo(default=default, kind=Kind.BOOLEAN, description=description, **more))


def integer(default: int | None, description: str, *, low: int = 0, high: int = MAX_INT32, **more: Any) -> Any:
    """Declare a whole number in ``[low, high]``."""
    return _field(FieldInfo(default=default, kind=Kind.INTEGER, description=description, low=low, high=high, **more))


def seed(description: str, **more: Any) -> Any:
    """Declare a number of 64 bits, None by default."""
    return _field(FieldInfo(default=None, kind=Kind.SEED, description=description, low=0, high=MAX_SEED, **more))


def number(default: float | None, description: str, **more: Any) -> Any:
    """Declare a finite number."""
    return _field(FieldInfo(default=default, kind=Kind.NUMBER, description=description, **more))


def string(default: str | None, description: str, **more: Any) -> Any:
    """Declare a string, free or one of ``choices``."""
    return _field(FieldInfo(default=default, kind=Kind.STRING, description=description, **more))


def strings(description: str, **more: Any) -> Any:
    """Declare a list of non-empty strings, None by default."""
    return _field(FieldInfo(default=None, kind=Kind.STRINGS, description=description, **more))


def tokens(description: str, **more: Any) -> Any:
    """Declare a list of token ids, None by default."""
    return _field(FieldInfo(default=None, kind=Kind.TOKENS, description=description, **more))


def biases(description: str, **more: Any) -> Any:
    """Declare a dict of token id to what is added to its logit, None by default."""
    return _field(FieldInfo(default=None, kind=Kind.BIASES, description=description, **more))


def json_object(description: str, words: tuple[str, ...] = (), **more: Any) -> Any:
    """Declare a JSON object, or one of some words, the first of them by default; without any, None by default."""
    default = words[0] if words else None
    info = FieldInfo(default=default, kind=Kind.JSON, description=description, choices=words, **more)
    return _field(replace(info, is_optional=True))


def names(description: str, **more: Any) -> Any:
    """Declare a dict of name to path, None by default."""
    return _field(FieldInfo(default=None, kind=Kind.NAMES, description=description, **more))


def other(description: str, **more: Any) -> Any:
    """Declare a field that is not checked here, None by default."""
    return _field(FieldInfo(default=None, kind=Kind.OTHER, description=description, **more))


class RecordsGiven:
    """A base of dataclasses whose instances know which of their fields were given, and which have their defaults."""

    _given: frozenset[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Note which fields ``__init__`` is called with."""
        self = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        self._given = frozenset([*names[: len(args)], *kwargs])
        return self

    def is_given(self, name: str) -> bool:
        """Return whether a field was given at construction, or changed since."""
        return name in self._given or getattr(self, name) != getattr(type(self), name)


@cache
def fields_of(cls: type[Any]) -> tuple[FieldInfo, ...]:
    """Return the fields of a dataclass that this module declared, in their order."""
    return tuple(
        replace(field.metadata[_KEY], name=field.name, default=None if field.default is MISSING else field.default)
        for field in dataclasses.fields(cls)
        if _KEY in field.metadata
    )


def require_valid(instance: Any, further_problems: Sequence[str | None] = ()) -> None:
    """Check every field of a dataclass that is a table.

    Raises
    ------
    ValueError
        With every problem found, each naming field, expectation and value.
    """
    table = fields_of(instance.__class__)
    checks.require([*(info.problem(getattr(instance, info.name)) for info in table), *further_problems])
    for info in table:
        if info.no_effect and getattr(instance, info.name) != info.default:
            logger.warning("%s has no effect: %s", info.name, info.no_effect)


def from_object(cls: type[_Table], given: Mapping[str, Any]) -> _Table:
    """Return the dataclass that is a table with the values of a JSON object.

    Raises
    ------
    ValueError
        If the object holds another field, or a value that is none of a field's.
    """
    table: type = cls
    known = [info.name for info in fields_of(table)]
    for name in given.keys() - set(known):
        raise ValueError(f"there is no field {name}{nearest_of(name, known)}")
    return cls(**given)


def documented(cls: _Class) -> _Class:
    """Give a dataclass that is a table the documentation of its fields; a decorator."""
    lines = [f"{info.name}\n    {describe(info)}" for info in fields_of(cls)]
    errors = (
        "Raises\n------\nValueError\n    If a value is of the wrong type or out of range; NaN and infinity always are."
    )
    cls.__doc__ = f"{cls.__doc__}\n\nParameters\n----------\n" + "\n".join(lines) + f"\n\n{errors}\n"
    return cls


def describe(info: FieldInfo) -> str:
    """Return the description of a field with its range."""
    return f"{info.description} ({info.range_text})" if info.range_text else info.description
