"""One response for one request: its tensors or its own error, never an error for the whole batch."""

import logging
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

logger = logging.getLogger(__name__)


def answer(request: Any, outputs: Callable[[Any], dict[str, Any]]) -> Any:
    """Return the response to a request.

    Parameters
    ----------
    request
        As Triton hands it over.
    outputs
        Makes the output tensors from it, name to array. Its ``ValueError`` is the caller's mistake, any other ours.
    """
    try:
        arrays = outputs(request)
    except ValueError as error:
        return _refusal(str(error), pb_utils.TritonError.INVALID_ARG)
    except Exception as error:
        logger.exception("request %s failed", request.request_id())
        return _refusal(f"internal error: {error!r}", pb_utils.TritonError.INTERNAL)
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, values) for name, values in arrays.items()])


def _refusal(message: str, code: int) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
