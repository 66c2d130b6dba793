"""Registry of HTTP endpoints, with who may call each and what forwards it.

The routes themselves are in `openai_gateway.endpoints`; a test compares them with this table. The application, its
middleware, the proxy and batches take their lists from here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Endpoint:
    """A path and its traits."""

    path: str  # as the OpenAPI document has it, parameters in braces
    prompt: str = "input"  # the field that holds the prompt, which errors about its length name
    checks_model: bool = False  # a model that is not served is reported before values of other fields
    is_proxied: bool = False  # the proxy forwards it to a node, by the `model` of its body
    is_batched: bool = False  # requests of batches may name it
    administers: str = ""  # what administrators do there, as a sentence begins; empty: it is for callers
    is_open: bool = False  # where a server has no keys at all, its callers are its administrators there
    method: str = "POST"  # by which administrators ask there; other methods are not allowed
    is_monitoring: bool = False  # needs no key, has no trace, and is served when the server is full
    distinguishes_types: bool = False  # a wrong type is 422, as LMDeploy's clients expect; elsewhere it is 400


FILES = "/v1/files"
LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
LOAD_MODEL, UNLOAD_MODEL = "/v1/load_model", "/v1/unload_model"
PULL_MODEL, DELETE_MODEL = "/api/pull", "/api/delete"
CACHE, DROP_CACHE = "/v1/cache", "/v1/cache/drop"
PIN_PROMPT, UNPIN_PROMPT = "/v1/cache/pin", "/v1/cache/unpin"
SLEEP, WAKE_UP, IS_SLEEPING = "/sleep", "/wake_up", "/is_sleeping"
_ADAPTERS, _MODELS = "Adapters are loaded and unloaded", "Models are loaded and unloaded"
_CACHE = "The cache is administered"

ENDPOINTS = (
    # OpenAI's API
    Endpoint("/v1/chat/completions", prompt="messages", checks_model=True, is_proxied=True, is_batched=True),
    Endpoint("/v1/completions", prompt="prompt", checks_model=True, is_proxied=True, is_batched=True),
    Endpoint("/v1/responses", checks_model=True, is_proxied=True, is_batched=True),
    Endpoint("/v1/responses/input_tokens", is_proxied=True),
    Endpoint("/v1/responses/{response_id}"),
    Endpoint("/v1/responses/{response_id}/cancel"),
    Endpoint("/v1/responses/{response_id}/input_items"),
    Endpoint("/v1/embeddings", is_proxied=True, is_batched=True),
    Endpoint("/v1/models"),
    Endpoint("/v1/models/{model}"),
    Endpoint(FILES),
    Endpoint(f"{FILES}/{{file_id}}"),
    Endpoint(f"{FILES}/{{file_id}}/content"),
    Endpoint("/v1/batches"),
    Endpoint("/v1/batches/{batch_id}"),
    Endpoint("/v1/batches/{batch_id}/cancel"),
    # Anthropic's
    Endpoint("/v1/messages", checks_model=True, is_proxied=True),
    Endpoint("/v1/messages/count_tokens", is_proxied=True),
    # Ollama's
    *map(Endpoint, ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings")),
    *map(Endpoint, ("/api/show", "/api/tags", "/api/ps", "/api/version")),
    # LM Studio's and llama.cpp's, for clients that look for models there
    *map(Endpoint, ("/api/v0/models", "/api/v1/models", "/props", "/slots")),
    Endpoint(PULL_MODEL, administers=_MODELS),
    Endpoint(DELETE_MODEL, administers=_MODELS, method="DELETE"),
    # vLLM's; the short paths are aliases
    *(Endpoint(f"/v1/{name}", is_proxied=True, is_batched=True) for name in ("rerank", "score", "classify", "pooling")),
    *(Endpoint(path, is_proxied=True) for path in ("/rerank", "/v2/rerank", "/score", "/classify", "/pooling")),
    # TEI's
    *(Endpoint(path, prompt="inputs") for path in ("/embed", "/embed_all", "/embed_sparse", "/predict")),
    *(Endpoint(f"/v1/{name}/render", is_proxied=True) for name in ("chat/completions", "completions")),
    *(Endpoint(path, is_proxied=True) for path in ("/tokenize", "/detokenize")),
    *(Endpoint(path, administers=_ADAPTERS) for path in (LOAD_ADAPTER, UNLOAD_ADAPTER)),
    *(Endpoint(path, administers=_MODELS) for path in (LOAD_MODEL, UNLOAD_MODEL)),
    Endpoint(CACHE, administers=_CACHE, method="GET"),
    *(Endpoint(path, administers=_CACHE) for path in (DROP_CACHE, PIN_PROMPT, UNPIN_PROMPT)),
    *(Endpoint(path, administers="Models are put to sleep and woken", is_open=True) for path in (SLEEP, WAKE_UP)),
    Endpoint(IS_SLEEPING),
    # LMDeploy's
    Endpoint("/v1/chat/interactive", distinguishes_types=True),
    Endpoint("/v1/encode", distinguishes_types=True),
    # operations
    *(Endpoint(path, is_monitoring=True) for path in ("/health", "/metrics")),
)
OF_PATH = {endpoint.path: endpoint for endpoint in ENDPOINTS}
"""The endpoint of each path without parameters, by which middleware looks it up."""

PROXIED = tuple(endpoint.path for endpoint in ENDPOINTS if endpoint.is_proxied)
BATCHED = tuple(endpoint.path for endpoint in ENDPOINTS if endpoint.is_batched)
ADMINISTERED = {endpoint.path: endpoint for endpoint in ENDPOINTS if endpoint.administers}
MONITORING = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.is_monitoring)
