"""Settings for either engine, for tests of what both of them promise."""

from typing import Any

from lmdeploy import PytorchEngineConfig, TurbomindEngineConfig

BACKENDS = ("turbomind", "pytorch")
# Nothing is found in the cache, and nothing is drafted.
WITHOUT_REUSE: dict[str, Any] = {"enable_prefix_caching": False, "speculative_config": "none"}
_NAMES_OF_PYTORCH = {
    "cache_block_seq_len": "block_size",
    "device": "device_type",
    "num_tokens_per_iter": "max_prefill_token_num",
}


def config_for(backend: str, **fields: Any) -> TurbomindEngineConfig | PytorchEngineConfig:
    """Return a configuration; ``fields`` have TurboMind's names in both engines; ``WITHOUT_REUSE`` by default."""
    fields = WITHOUT_REUSE | fields
    if backend == "turbomind":
        return TurbomindEngineConfig(**fields)
    return PytorchEngineConfig(**{_NAMES_OF_PYTORCH.get(name, name): value for name, value in fields.items()})
