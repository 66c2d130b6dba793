"""Field types, and the base of every request body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from lmdeploy.units import duration

MAX_INT32 = 2**31 - 1  # counts travel as int32
MAX_DEPTH = 64  # of objects and lists in a JSON value
MAX_SESSION = 2**63 - 1
MAX_ITEMS = 16384  # of a conversation: messages, or parts of one
MAX_SCHEMA_VALUES = 65536  # of all schemas and objects of a request that are handed on as they are

Tokens = Annotated[int, Field(ge=1, le=MAX_INT32)]


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair; UTF-8 cannot
        raise PydanticCustomError("lone_surrogate", "Input should be text without lone surrogates") from None
    return text


def small(value: Any) -> Any:
    """Refuse a JSON value that has too many values in it; to come before any other look at them."""
    count, waiting = 0, [value]
    while waiting and count <= MAX_SCHEMA_VALUES:
        item = waiting.pop()
        count += 1
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    if waiting:
        raise PydanticCustomError("too_many", f"Input should be of at most {MAX_SCHEMA_VALUES} values")
    return value


def at_most(maximum: int) -> Callable[[object], object]:
    """Return a check of how many items a list or an object has, to come before they are looked at.

    Unlike a longest length it is not part of the OpenAPI document, whose readers make examples of that length.
    """

    def check(value: object) -> object:
        if isinstance(value, dict | list) and len(value) > maximum:
            raise PydanticCustomError("too_long", f"Input should be of at most {maximum} items")
        return value

    return check


T = TypeVar("T")
Items = Annotated[list[T], Field(fail_fast=True), BeforeValidator(at_most(MAX_ITEMS))]
"""Of a conversation; the first that is refused ends the look at them."""


def _shallow(value: Any) -> Any:
    """Refuse a JSON value that is nested too deeply, or holds a text that UTF-8 cannot carry."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _encodable(item)
            elif isinstance(item, dict):
                inner += [*item, *item.values()]
            elif isinstance(item, list):
                inner += item
        if not (level := inner):
            return value
    raise PydanticCustomError("too_deep", f"Input should be nested at most {MAX_DEPTH} levels deep")


AnyText = Annotated[str, AfterValidator(_encodable)]
Text = Annotated[AnyText, Field(min_length=1)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(small), AfterValidator(_shallow)]


PROMPTS_ARE_CACHED = "prompts are cached without being asked to"
ONE_TIER = "there is one service tier"

NotImplementedFields = Mapping[str, tuple[object, ...]]


class FieldError(ValueError):
    """A field is refused; `field` is its name and the text says everything."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def exactly_one(field: str, other: str) -> Any:
    """Return the check of a body that it has one of two fields."""

    def check(body: T) -> T:
        if (getattr(body, field) is None) == (getattr(body, other) is None):
            raise FieldError(field, f"{field} or {other} is required, and not both")
        return body

    return model_validator(mode="after")(check)


def _seconds(value: object, info: ValidationInfo) -> object:
    """Return a duration in seconds; what is none of its types is left for the error about that."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    try:
        return duration(info.field_name or "it", value) if value != "" else None
    except ValueError as error:
        raise FieldError("", str(error)) from None  # pydantic adds the field


Duration = Annotated[
    float | None,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]}),
]
"""A number of seconds, or a text such as ``5m``; negative: forever."""

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_MAX_EFFORT = ("xhigh", "max")  # than which templates know less


def thinking_options(effort: str | None, is_enabled: bool | None) -> dict[str, Any]:
    """Return the variables for the chat template that say whether, and how much, a model is to think.

    What they are called differs from family to family.
    """
    known = "high" if effort in _MAX_EFFORT else effort
    options: dict[str, Any] = {} if known is None else {"reasoning_effort": known}
    thinks = False if effort == "none" else is_enabled
    return options if thinks is None else options | {"enable_thinking": thinks, "thinking": thinks}


class Strict(BaseModel):
    """No value is converted; fields we do not know are ignored, as OpenAI's clients expect."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())

    # Fields of the API that are not implemented, with the values that ask for nothing beyond what is.
    # Any other value is refused: a client must not believe it was honoured.
    not_implemented: ClassVar[NotImplementedFields] = {}
    # Fields that are taken and change nothing, and why. The reference of the HTTP API lists both.
    no_effect: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for table in ("not_implemented", "no_effect"):
            inherited = [vars(base).get(table, {}) for base in reversed(cls.__mro__)]
            setattr(cls, table, {name: value for fields in inherited for name, value in fields.items()})

    @model_validator(mode="before")
    @classmethod
    def _reject_not_implemented(cls, fields: object) -> object:
        if isinstance(fields, Mapping):
            for name, neutral in cls.not_implemented.items():
                value = fields.get(name)
                if value is not None and value not in neutral:
                    raise FieldError(name, f"{name} is not supported by this server; leave it out")
        return fields


class Closed(Strict):
    """As `Strict`, but a member that is not known is refused: it would change what the response has to look like."""

    @model_validator(mode="before")
    @classmethod
    def _reject_unknown(cls, fields: object) -> object:
        if isinstance(fields, Mapping):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            judged = {*known, *cls.no_effect, *cls.not_implemented}
            for name, value in fields.items():
                if name not in judged and value is not None:
                    raise FieldError(name, f"{name} is not known; give {', '.join(known)}")
        return fields


TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
PromptTokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


def items_of(given: str | list[str] | list[int] | list[list[int]]) -> list[str] | list[list[int]]:
    """Return the texts, each one text or tokens."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    return given
