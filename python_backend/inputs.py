"""Input tensors of a request as Python values."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


def has(request: Any, name: str) -> bool:
    """Return whether the request has this input."""
    return pb_utils.get_input_tensor_by_name(request, name) is not None


def array(request: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Return an input as it came, or None."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def texts(request: Any, name: str) -> list[str]:
    """Return the strings of an input; none when it is absent.

    Raises `ValueError` if one is not UTF-8.
    """
    items = array(request, name)
    if items is None:
        return []
    try:
        return [bytes(item).decode() for item in items.reshape(-1)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be UTF-8 text ({error.reason} at byte {error.start})") from error


def text(request: Any, name: str) -> str | None:
    """Return the only string of an input, or None; raise `ValueError` if it is not UTF-8."""
    found = texts(request, name)
    return found[0] if found else None


def integer(request: Any, name: str) -> int | None:
    """Return the only integer of an input, or None."""
    values = array(request, name)
    return None if values is None or values.size == 0 else int(values.reshape(-1)[0])


def flag(request: Any, name: str, default: bool = False) -> bool:
    """Return a true or false input of any numeric type."""
    values = array(request, name)
    return default if values is None or values.size == 0 else bool(values.reshape(-1)[0])
