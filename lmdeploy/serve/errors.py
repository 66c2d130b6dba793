"""Exceptions of the serving layer."""

from __future__ import annotations

import re

# The words of the engine (engine/check_request.cc, schedule/session_table.cc) and of `lmdeploy.prompts`.
_PROMPT_TOO_LONG = re.compile(r"prompt must be shorter than the session length of (\d+) tokens, got (\d+$)?")
_ANSWER_TOO_LONG = re.compile(r"max_new_tokens must be at most the session length of (\d+) tokens, got (\d+)$")


class TritonUnavailable(Exception):
    """Triton cannot be reached, or does not serve the model now; trying again later may work."""


class TritonRequestError(Exception):
    """Triton refused, or failed, one request; others are not affected."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code  # name of the gRPC status, e.g. ``INVALID_ARGUMENT``
        self.message = message  # text for the user


class ContextExceeded(TritonRequestError):
    """A prompt, or the limit of a response, that is longer than the model's context.

    ``is_prompt``: it is the prompt; else the limit of the response. ``limit``: tokens of the context, which prompt and
    response share. ``tokens``: of the prompt, or the limit that was asked for; None: more than the context has, and not
    counted.
    """

    def __init__(self, code: str, message: str, is_prompt: bool, limit: int, tokens: int | None) -> None:
        super().__init__(code, message)
        self.is_prompt, self.limit, self.tokens = is_prompt, limit, tokens


def request_error(code: str, message: str) -> TritonRequestError:
    """Return the error of a request that was refused, or failed, with these words."""
    for pattern in (_PROMPT_TOO_LONG, _ANSWER_TOO_LONG):
        if found := pattern.search(message):
            limit, tokens = found.groups()
            return ContextExceeded(
                code, message, pattern is _PROMPT_TOO_LONG, int(limit), int(tokens) if tokens else None
            )
    return TritonRequestError(code, message)


class TritonStartError(Exception):
    """tritonserver could not be started; the text says why."""


class PortInUseError(TritonStartError):
    """A port that is needed is taken by another process."""
