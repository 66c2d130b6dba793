"""Checks of user-given values: each returns None, or an error sentence with the expected and the given value."""

import math
import numbers
import sys
from collections.abc import Collection, Iterable, Sized

MAX_TOKEN = 2**31 - 1  # token ids are int32


class ArgumentError(ValueError, AssertionError):
    """An argument is none of those allowed; LMDeploy's own classes raise an ``AssertionError``."""


def whole(name: str, value: object, low: int, high: int | None = None) -> str | None:
    """Check that ``value`` is a whole number in ``[low, high]``."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        return f"{name} must be a whole number >= {low}, got {value!r}"
    if int(value) < low:
        return f"{name} must be >= {low}, got {value}"
    if high is not None and int(value) > high:
        return f"{name} must be <= {high}, got {value}"
    return None


def finite(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    low: float = -math.inf,
    below: float = math.inf,
    high: float = math.inf,
) -> str | None:
    """Check that ``value`` is a finite number, ``above < value < below`` and ``low <= value <= high``."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    # Python compares a whole number of any size with a float exactly; NaN fails every comparison.
    if is_number and abs(value) <= sys.float_info.max and above < value < below and low <= value <= high:  # type: ignore[operator, arg-type]
        return None
    limits = {"> ": above, ">= ": low, "< ": below, "<= ": high}
    bounds = [f"{sign}{limit:g}" for sign, limit in limits.items() if math.isfinite(limit)]
    return f"{name} must be a finite number {' and '.join(bounds)}, got {value!r}"


def flag(name: str, value: object) -> str | None:
    """Check that ``value`` is true or false."""
    return None if isinstance(value, bool) else f"{name} must be True or False, got {value!r}"


def one_of(name: str, value: object, choices: Collection[object]) -> str | None:
    """Check that ``value`` is one of ``choices``."""
    if any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        return None
    return f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}"


def strings(name: str, value: object, max_items: int | None = None, max_bytes: int | None = None) -> str | None:
    """Check that ``value`` is a list of at most this many non-empty strings, each of this many bytes as UTF-8."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value):
        return f"{name} must be a list of non-empty strings, got {value!r}"
    if max_bytes is not None and any(len(v.encode(errors="surrogatepass")) > max_bytes for v in value):
        return f"each of {name} must be at most {max_bytes} bytes long"
    return at_most(name, value, max_items)


def token_ids(name: str, value: object, max_items: int | None = None) -> str | None:
    """Check that ``value`` is a list of at most this many token ids."""
    if not isinstance(value, (list, tuple)) or not all(whole(name, v, 0, MAX_TOKEN) is None for v in value):
        return f"{name} must be a list of token ids >= 0, got {value!r}"
    return at_most(name, value, max_items)


def token_biases(name: str, value: object, max_items: int | None = None) -> str | None:
    """Check that ``value`` is a dict of token id to a finite number."""
    if not isinstance(value, dict):
        return f"{name} must be a dict of token id to number, got {value!r}"
    problems = (
        whole(f"{name} token", token, 0, MAX_TOKEN) or finite(f"{name}[{token}]", bias) for token, bias in value.items()
    )
    return next((problem for problem in problems if problem is not None), None) or at_most(name, value, max_items)


def at_most(name: str, value: Sized, max_items: int | None) -> str | None:
    """Check that a list is not too long."""
    if max_items is None or len(value) <= max_items:
        return None
    return f"{name} must have at most {max_items} entries, got {len(value)}"


def optional_text(name: str, value: object, max_bytes: int | None = None) -> str | None:
    """Check that ``value`` is None or a string, of at most ``max_bytes`` bytes of UTF-8."""
    if value is None:
        return None
    if not isinstance(value, str):
        return f"{name} must be a string, got {value!r}"
    size = len(value.encode(errors="surrogatepass"))
    return None if max_bytes is None or size <= max_bytes else f"{name} must have at most {max_bytes} bytes, got {size}"


def require(problems: Iterable[str | None]) -> None:
    """Raise ``ArgumentError`` with every problem found, if any."""
    found = [problem for problem in problems if problem is not None]
    if found:
        raise ArgumentError("; ".join(found))


def parser_name(option: str, text: str, names: Iterable[str]) -> str:
    """Return the one of `names` that `text` is, however its words are joined.

    Raises `ValueError`: none is; lists them.
    """
    known = {_normalized(name): name for name in names}
    try:
        return known[_normalized(text)]
    except KeyError:
        raise ValueError(f"{option} must be one of {', '.join(known.values())}, got {text!r}") from None


def _normalized(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
