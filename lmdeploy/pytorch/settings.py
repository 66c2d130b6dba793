"""The settings of the PyTorch engine, as the C++ engine takes them."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.fields import field
from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig

# Fields of both engines that have other names here.
_NAMES = {"block_size": "cache_block_seq_len", "device_type": "device"}
_AS_THEY_ARE = (
    "dtype", "tp", "session_len", "max_batch_size", "cache_max_entry_count", "max_prefill_token_num",
    "enable_prefix_caching", "quant_policy", "download_dir", "revision", "adapters", "eager_mode",
    "worker_step_seconds", "threads", "num_cpu_blocks", "kv_events_config", "speculative_config",
)  # fmt: skip


@field.documented
@dataclass
class WorkerSettings:
    """Settings of worker processes, next to those of ``TurbomindEngineConfig``."""

    eager_mode: bool = field.boolean(False, "Run a model's modules as they are, without captured graphs.")
    custom_module_map: str = field.string(
        "", "Classes that run a model in place of those known: a Python file, or a JSON object of name to class."
    )
    worker_step_seconds: float = field.number(
        600.0, "A step of the PyTorch engine that takes longer counts as lost, and its processes are started again.",
        above=0,
    )  # fmt: skip

    def __post_init__(self) -> None:
        field.require_valid(self)


def require_valid_settings(given: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` unless these are settings of the C++ engine, by name, that hold what they may."""
    names = {field.name for field in dataclasses.fields(WorkerSettings)}
    WorkerSettings(**{name: value for name, value in given.items() if name in names})
    TurbomindEngineConfig(**{name: value for name, value in given.items() if name not in names})


def engine_settings(config: PytorchEngineConfig) -> dict[str, Any]:
    """Return the settings that a C++ engine in front of workers is given."""
    given = dataclasses.asdict(config)
    settings = {name: given[name] for name in _AS_THEY_ARE}
    settings |= {documented: given[name] for name, documented in _NAMES.items()}
    if config.num_gpu_blocks:
        settings["cache_max_entry_count"] = config.num_gpu_blocks
    settings["custom_module_map"] = _map_text(config.custom_module_map)
    return settings


def _map_text(modules: object) -> str:
    """Return a file's name, or a dict as JSON: workers are their own processes, which find classes by name."""
    if not modules:
        return ""
    if isinstance(modules, str) and modules.lstrip().startswith("{"):
        return modules
    if isinstance(modules, str | Path):
        return str(Path(modules).expanduser().absolute())  # workers may be started elsewhere
    if isinstance(modules, dict) and all(isinstance(name, str) for pair in modules.items() for name in pair):
        return json.dumps(modules)
    raise ValueError(
        f"custom_module_map must be a Python file, or a dict of architecture to a class's full name, got {modules!r}"
    )
