"""Context-length errors, in the words and codes that clients know.

Clients shorten the conversation, or ask for less, where they recognize these: OpenAI's ``context_length_exceeded`` and
"maximum context length is N tokens", Anthropic's "prompt is too long: N tokens > M maximum".
"""

from __future__ import annotations

from lmdeploy.serve.errors import ContextExceeded
from openai_gateway.errors import ApiError, api_of
from openai_gateway.registry import OF_PATH

_EMBEDS = "/api/embed"  # begins paths of Ollama's where no token is left to answer with


def context_error(error: ContextExceeded, path: str, limit_field: str) -> ApiError:
    """Return the error for clients.

    ``limit_field``: what the request calls the limit of a response's tokens.
    """
    if not error.is_prompt:
        return _answer_error(error, path, limit_field)
    endpoint = OF_PATH.get(path)
    field = "input" if endpoint is None else endpoint.prompt
    counted = str(error.tokens or f"more than {error.limit}")
    match api_of(path):
        case "anthropic":
            max_tokens = error.limit - 1  # a token is left to answer with
            message = f"prompt is too long: {error.tokens or error.limit} tokens > {max_tokens} maximum"
        case "ollama":
            max_tokens = error.limit - (not path.startswith(_EMBEDS))
            message = f"the input length exceeds the context length: {counted} tokens, at most {max_tokens}"
        case _:
            message = (
                f"This model's maximum context length is {error.limit} tokens. However, your {field} resulted in "
                f"{counted} tokens. Please reduce the length of the {field}."
            )
    return ApiError(400, message, param=field, code="context_length_exceeded")


def _answer_error(error: ContextExceeded, path: str, limit_field: str) -> ApiError:
    if api_of(path) == "anthropic":
        message = f"{limit_field}: {error.tokens} > {error.limit}, which is the maximum allowed number of output tokens"
    else:
        message = (
            f"{limit_field} is too large: {error.tokens}. This model supports at most {error.limit} completion tokens, "
            f"whereas you provided {error.tokens}."
        )
    return ApiError(400, message, param=limit_field, code="invalid_value")
