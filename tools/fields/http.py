"""docs/reference/http-api/fields.md: the effect of each field of a request, from the models that read them."""

from __future__ import annotations

import json

from openai_gateway.endpoints.chat.protocol import ChatCompletionRequest
from openai_gateway.endpoints.completions.protocol import CompletionRequest
from openai_gateway.endpoints.embeddings.protocol import EmbeddingRequest
from openai_gateway.endpoints.messages.protocol import MessagesRequest
from openai_gateway.endpoints.ollama.options import HONOURED_OPTIONS, OPTIONS_WITHOUT_EFFECT
from openai_gateway.endpoints.ollama.protocol import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.endpoints.scoring.protocol import RerankRequest
from openai_gateway.endpoints.tei.protocol import EmbedRequest as TeiEmbedRequest
from openai_gateway.endpoints.tei.protocol import PredictRequest, TextsRequest
from openai_gateway.protocol.fields import Strict

PAGE_FIELDS: dict[str, type[Strict]] = {
    "OpenAI: `POST /v1/chat/completions`": ChatCompletionRequest,
    "OpenAI: `POST /v1/completions`": CompletionRequest,
    "OpenAI: `POST /v1/responses`": ResponsesRequest,
    "OpenAI: `POST /v1/embeddings`": EmbeddingRequest,
    "Anthropic: `POST /v1/messages`": MessagesRequest,
    "Ollama: `POST /api/chat`": ChatRequest,
    "Ollama: `POST /api/generate`": GenerateRequest,
    "Ollama: `POST /api/embed`": EmbedRequest,
    "Ollama: `POST /api/embeddings`": EmbeddingsRequest,
    "TEI: `POST /embed`": TeiEmbedRequest,
    "TEI: `POST /embed_all`, `/embed_sparse`": TextsRequest,
    "TEI: `POST /predict`": PredictRequest,
    "Cohere and TEI: `POST /v1/rerank`, `/v2/rerank`, `/rerank`": RerankRequest,
}

_PAGE = """\
# Fields of requests

What becomes of each field of a request, with those that clients of LMDeploy and vLLM add. Written by `make fields` from
the models in `openai_gateway/`; a test compares it with the types of the packages `openai`, `anthropic` and `ollama`. A
refused field is an error of status 400 that names it, unless it has one of the values that ask for nothing. The server
ignores fields that no API has.

{tables}

## Ollama: `options`

{options}
"""


def fates(model: type[Strict]) -> dict[str, str]:
    """Return the use of each field that a body of this kind may have, by its name."""
    honoured = {info.alias or name: "honoured" for name, info in model.model_fields.items()}
    return (
        honoured
        | {name: _rejected(neutral) for name, neutral in model.not_implemented.items()}
        | {name: f"no effect: {reason}" for name, reason in model.no_effect.items()}
    )


def request_fields(_: str) -> str:
    """Return the page."""
    tables = "\n\n".join(f"## {title}\n\n{_table(fates(model))}" for title, model in PAGE_FIELDS.items())
    options = dict.fromkeys(HONOURED_OPTIONS, "honoured")
    options |= {name: f"no effect: {reason}" for name, reason in OPTIONS_WITHOUT_EFFECT.items()}
    return _PAGE.format(tables=tables, options=_table(options))


def _rejected(neutral: tuple[object, ...]) -> str:
    values = " or ".join(f"`{json.dumps(value)}`" for value in neutral)
    return f"refused unless {values}" if values else "refused"


def _table(fields: dict[str, str]) -> str:
    """Return the fields of each fate in a row."""
    names: dict[str, list[str]] = {}
    for name, fate in fields.items():
        names.setdefault(fate, []).append(f"`{name}`")
    rows = [f"| {', '.join(sorted(some))} | {fate} |" for fate, some in sorted(names.items())]
    return "\n".join(["| fields | here |", "| --- | --- |", *rows])
