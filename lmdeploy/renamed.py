"""Public names of version 0.1 that have a new spelling since 0.2. The old ones work for one release.

`docs/reference/renamed.md` shows these tables, and `tests/unit/test_renamed.py` uses every old name.
"""

TRITON_MODELS = {"ensemble_pictures": "ensemble_vision"}
"""Old name to new name of an ensemble. A repository of one model has both."""

GATEWAY_METRICS = {
    "lmdeploy_gateway_answers": "lmdeploy_gateway_responses",
    "lmdeploy_gateway_answer_seconds": "lmdeploy_gateway_request_latency_seconds",
    "lmdeploy_gateway_answer_tokens": "lmdeploy_gateway_generation_tokens",
}
"""Families on the gateway's page, without the suffixes of their samples."""

ENGINE_METRICS = {
    "tokens_sought_total": "prefix_cache_queries_total",
    "tokens_matched_total": "prefix_cache_hits_total",
}
"""Counters of the engine: on Triton's page with the prefix ``turbomind_``, and in ``Engine.metrics()``."""

CONVERSATION_KEYS = {"pictures": "images"}
"""Keys of conversations that the chat page has saved; read, not written."""

TOOL_OPTIONS = {"tools/gpu_check.sh --rehearse": "--dry-run", "tools.bench.compare --patience": "--timeout"}
"""Options of developers' tools."""
