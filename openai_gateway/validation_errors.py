"""Readable message for pydantic's validation errors."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

from openai_gateway.errors import ApiError
from openai_gateway.protocol.fields import FieldError

MISTYPED = 422
"""Status of wrong types and missing fields until the path is looked at: only LMDeploy's own paths keep it."""

_BAD_VALUE = 400
_SHOWN_INPUT = 60  # characters of a refused value
_SHOWN_PATH = 200  # characters of where it is

# LMDeploy's range checks, in its order and words: field -> pydantic's error types, and the words.
_RANGES = {
    "n": (("greater_than_equal",), "The n `{}` must be a positive int."),
    "top_p": (("greater_than", "greater_than_equal", "less_than_equal"), "The top_p `{}` must be in (0, 1]."),
    "top_k": (("greater_than_equal",), "The top_k `{}` cannot be a negative integer."),
    "temperature": (("greater_than_equal", "less_than_equal"), "The temperature `{}` must be in [0, 2]"),
}
_CHECKED_FIRST = list(_RANGES)


def validation_error(errors: Sequence[Any]) -> ApiError:
    """Return one readable error out of pydantic's list: of the field that is checked first, in the form that fits."""
    error = min((_of_best_form(of_field, 2) for of_field in _grouped(errors, 1).values()), key=_rank)
    reported = _one_error(error)
    if reported.status == MISTYPED:
        reported.detail = [{key: error[key] for key in ("type", "loc", "msg")} | {"input": _shown(error["input"])}]
    return reported


def _grouped(errors: Sequence[Any], depth: int) -> dict[Any, list[Any]]:
    """Return errors by the part of their locations at a depth; None: the location ends before."""
    groups: dict[Any, list[Any]] = {}
    for error in errors:
        groups.setdefault(error["loc"][depth] if depth < len(error["loc"]) else None, []).append(error)
    return groups


def _of_best_form(errors: Sequence[Any], depth: int) -> Any:
    """Return the first error of one value; where it may have several forms, of the form that it has most of."""
    groups = _grouped(errors, depth)
    if len(errors) == 1 or None in groups:
        return errors[0]
    is_union = all(isinstance(part, str) and not _is_name(part) for part in groups)
    chosen = max(groups.values(), key=lambda group: _fit(group, depth + 1)) if is_union else next(iter(groups.values()))
    return _of_best_form(chosen, depth + 1)


def _fit(errors: Sequence[Any], depth: int) -> tuple[bool, bool, bool, tuple[int, list[int]]]:
    """Rate how well a value fits a form, by its errors: its kind, its tag, all kinds within, how far it was read."""
    rejected = [error for error in errors if error["type"] == "literal_error"]
    is_kind = not any(
        len(error["loc"]) == depth
        and (_is_mistyped(error) or (error in rejected and not isinstance(error["input"], str)))
        for error in errors
    )
    has_tag = not any(error["loc"][depth:] in (("type",), ("role",)) for error in rejected)
    read = max((len(error["loc"]), [part for part in error["loc"] if isinstance(part, int)]) for error in errors)
    return is_kind, has_tag, not any(map(_is_mistyped, errors)), read


def _rank(error: Any) -> tuple[bool, int]:
    """Return where an error is in LMDeploy's order: types, then what it checks itself, then the rest."""
    field = error["loc"][1] if len(error["loc"]) > 1 else None
    checked = _CHECKED_FIRST.index(field) if field in _CHECKED_FIRST else len(_CHECKED_FIRST)
    return not _is_mistyped(error), checked


def _is_mistyped(error: Any) -> bool:
    kind: str = error["type"]
    return kind in ("json_invalid", "missing") or kind.endswith(("_type", "_parsing"))


def _one_error(error: Any) -> ApiError:
    status = MISTYPED if _is_mistyped(error) else _BAD_VALUE
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", "")
        return ApiError(status, f"The request body is not valid JSON: {reason}", code="invalid_json")
    param = _path(error["loc"][1:])
    if error["type"] == "value_error" and isinstance(rejection := error["ctx"]["error"], FieldError):
        param = ".".join(filter(None, (param, rejection.field)))
        message, begins = str(rejection), rejection.field
        if begins and message.startswith(begins):
            message = param + message.removeprefix(begins)
        return ApiError(status, message, param=param, code="unsupported_value")
    if not param:
        return ApiError(status, "The request body must be a JSON object, sent as application/json.")
    if error["type"] == "missing":
        return ApiError(status, f"{param} is required", param=param, code="missing_required_parameter")
    if error["type"] == "too_long" and (limit := error.get("ctx", {}).get("max_length")) is not None:
        message = f"{param} must have at most {limit} items, got {error['ctx']['actual_length'] or 'more'}"
        return ApiError(status, message, param=param, code="invalid_value")
    kinds, words = _RANGES.get(param, ((), ""))
    if error["type"] in kinds:
        return ApiError(status, words.format(error["input"]), param=param, code="invalid_value")
    _, is_short, expected = error["msg"].partition("Input should be ")
    reason = f"{param} must be {expected}" if is_short else f"{param}: {error['msg']}"
    code = "invalid_type" if status == MISTYPED else "invalid_value"
    return ApiError(status, f"{reason}, got {_shown(error['input'])}", param=param, code=code)


def _path(location: Sequence[str | int]) -> str:
    """Return ``messages[0].content`` for a pydantic location, without the names of union members."""
    path, tagged = "", False
    for part in location:
        if tagged and isinstance(part, str):  # which form of the field was meant
            tagged = False
            continue
        tagged = part == "response_format"
        if isinstance(part, int):
            path += f"[{part}]"
        elif _is_name(part):
            path += f".{part}" if path else part
    return path[:_SHOWN_PATH]


def _is_name(part: str) -> bool:
    """Return whether a part of a location is a field's name, and not what pydantic calls a form of its value."""
    return part.isidentifier() and part.islower() and part not in ("str", "int", "float", "bool", "none")


def _shown(value: object) -> str:
    text = _REPR.repr(value[: 2 * _SHOWN_INPUT]) if isinstance(value, str) else _REPR.repr(value)
    return text if len(text) <= _SHOWN_INPUT else text[:_SHOWN_INPUT] + "..."


def _brief_repr() -> reprlib.Repr:
    """Return a formatter of the beginning of a value; the whole of a long one would cost more than its parsing."""
    brief = reprlib.Repr()
    brief.maxlist = brief.maxdict = _SHOWN_INPUT // 2
    brief.maxstring = brief.maxlong = brief.maxother = 2 * _SHOWN_INPUT
    return brief


_REPR = _brief_repr()
