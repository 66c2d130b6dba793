"""Response of one request: its tensors or its own error, never an error for the whole batch."""

import json
import logging
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

from lmdeploy.errors import is_panic

logger = logging.getLogger(__name__)


class Cancelled(Exception):
    """Nobody waits for the response any more."""


def respond(request: Any, outputs: Callable[[Any], dict[str, Any]]) -> Any:
    """Return the response to a request.

    ``request``: as Triton hands it over. ``outputs``: makes the output tensors from it, name to array. Its
    ``ValueError`` is the caller's mistake, any other but `Cancelled` ours.
    """
    try:
        arrays = outputs(request)
    except ValueError as error:
        return _rejection(request, "INVALID_ARGUMENT", str(error))
    except Cancelled:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("the caller left", pb_utils.TritonError.CANCELLED))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        logger.exception("request %s failed", request.request_id())
        return _rejection(request, "INTERNAL", f"internal error: {error!r}")
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, values) for name, values in arrays.items()])


def _rejection(request: Any, code: str, message: str) -> Any:
    if json.loads(request.parameters() or "{}").get("error_codes"):  # docs/internals/interfaces.md
        message = f"{code}: {message}"
    triton_code = pb_utils.TritonError.INVALID_ARG if code == "INVALID_ARGUMENT" else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, triton_code))
