"""``options`` of Ollama's requests, clamped into range as Ollama does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lmdeploy.fields.field import FieldInfo
from lmdeploy.serve.request import FIELDS
from openai_gateway.errors import ApiError
from openai_gateway.protocol.fields import MAX_INT32

# Ollama's name of an option -> ours. Others are about how it runs models.
_NUMBERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
HONOURED_OPTIONS = (*_NUMBERS, "top_k", "seed", "num_predict", "stop", "tool_choice")
_RUNNING, _NO_SAMPLER = "how models run is up to the server", "there is no such sampler"
OPTIONS_WITHOUT_EFFECT = dict.fromkeys(
    [
        *("numa", "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all", "vocab_only"),
        *("use_mmap", "use_mlock", "embedding_only", "num_thread", "num_keep"),
    ],
    _RUNNING,
) | dict.fromkeys(
    ("tfs_z", "repeat_last_n", "mirostat", "mirostat_tau", "mirostat_eta", "penalize_newline"), _NO_SAMPLER
)
_EPSILON = 1e-6  # added to a limit that a number has to be above


def fields_of_options(options: Mapping[str, Any], context_len: int | None) -> dict[str, Any]:
    """Return the fields of a chat completion that options ask for; raise `ApiError` if an option is of another type.

    ``options``: a null option is as if it were left out. ``context_len``: tokens of the model's context; None: not
    known.
    """
    given = {name: value for name, value in options.items() if value is not None}
    fields: dict[str, Any] = {}
    for option, field in _NUMBERS.items():
        if option in given:
            fields[field] = _within(_number(option, given[option]), FIELDS[field])
    if "top_k" in given:
        fields["top_k"] = min(max(int(_number("top_k", given["top_k"])), 0), MAX_INT32)
    if "seed" in given and (seed := int(_number("seed", given["seed"]))) >= 0:  # below: a new one each time
        fields["seed"] = min(seed, 2**63 - 1)
    if "num_predict" in given:
        max_tokens = int(_number("num_predict", given["num_predict"]))
        if 0 < max_tokens < (context_len or MAX_INT32):  # else as many as there is room for
            fields["max_tokens"] = max_tokens
    if "stop" in given:
        fields["stop"] = _texts(given["stop"]) or None
    return fields


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        message = f"options.{name} must be a number, got {str(value)[:60]!r}"
        raise ApiError(400, message, param=f"options.{name}", code="invalid_type")
    return value


def _within(value: float, field: FieldInfo) -> float:
    if field.name == "repetition_penalty" and value <= 0:  # none
        return 1.0
    low = field.low if field.above is None else field.above + _EPSILON
    return float(min(max(value, -math.inf if low is None else low), math.inf if field.high is None else field.high))


def _texts(value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ApiError(400, "options.stop must be a list of texts", param="options.stop", code="invalid_type")
    return [text for text in texts if text]
