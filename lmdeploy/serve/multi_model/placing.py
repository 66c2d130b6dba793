"""Assignment of memory and repository folders to models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmdeploy.serve.multi_model.memory import DEFAULT_SHARE, divide, free_memory
from lmdeploy.serve.multi_model.prepared import PreparedModel
from lmdeploy.serve.multi_model.registry import Registry, ServedEntry

_BUDGET = "--models-memory"  # which an error names


def place_first(
    registry: Registry,
    models: Sequence[PreparedModel],
    unload_seconds: float,
    # Bytes for all models together, which take turns: each is placed as if it had them alone. None: what is free, of
    # which each has its part
    budget: int | None = None,
    idle_timeout: float | None = None,  # of models that have none of their own (`RequestedModel`)
) -> None:
    """Write the models that a server starts with into an empty registry.

    Raises `ValueError` if they do not fit together; the text names sizes.
    """
    devices = {"cpu", *(model.device for model in models)}  # one that is loaded later may want the CPU
    free = {device: count for device in sorted(devices) if (count := free_memory(device)) is not None}
    blocks: dict[str, int] = {}
    if budget is None:
        blocks = _blocks(models, free)
    else:
        _expect_each_to_fit(models, free, budget)
    registry.write([], free, budget=budget, idle_timeout=idle_timeout)
    entries: list[ServedEntry] = []
    for model in models:
        cache = blocks.get(model.name)
        if budget is None and cache is None and model.fixed_blocks is None:
            # The engine sees how much is free, one after another.
            share = model.engine.get("cache_max_entry_count", DEFAULT_SHARE)
            entries.append(_add(registry, model, entries, share / len(models), unload_seconds))
        else:
            entries.append(_add(registry, model, entries, cache, unload_seconds))
    registry.write(entries)


def place_another(registry: Registry, model: PreparedModel, unload_seconds: float) -> ServedEntry:
    """Write the folders of a model for a server that runs; the list of those served stays as it is.

    Raises `ValueError` if it does not fit alongside the others; the text names sizes.
    """
    served, budget = registry.models(), registry.budget()
    if budget is not None:
        _expect_each_to_fit([model], registry.free_at_start(), budget)
        return _add(registry, model, served, None, unload_seconds)
    taken = sum(entry.memory for entry in served if entry.device == model.device)
    now, at_start = free_memory(model.device), registry.free_at_start().get(model.device)
    free = {}
    if now is not None:  # what others have set apart they may not have touched yet
        free[model.device] = now if at_start is None else max(0, min(now, at_start - taken))
    return _add(registry, model, served, _blocks([model], free).get(model.name), unload_seconds)


def _blocks(models: Sequence[PreparedModel], free: Mapping[str, int]) -> dict[str, int]:
    blocks: dict[str, int] = {}
    for device, bytes_ in free.items():
        if placed := [model for model in models if model.device == device]:
            blocks |= divide(placed, bytes_)
    return blocks


def _expect_each_to_fit(models: Sequence[PreparedModel], free: Mapping[str, int], budget: int) -> None:
    """Raise ValueError where a model has no room alone, by the sizes of its files; the engine knows what it takes."""
    for model in models:
        available = free.get(model.device, budget)
        divide([model], min(budget, available), _BUDGET if budget <= available else "")


def _add(
    registry: Registry,
    model: PreparedModel,
    others: Sequence[ServedEntry],
    cache: float | None,
    unload_seconds: float,
) -> ServedEntry:
    suffix = registry.new_suffix(model.name, {other.suffix for other in others})
    blocks = cache if cache is not None and cache >= 1 else 0
    memory = model.weights + int(blocks * model.block)
    registry.add_folders(model, suffix, cache, unload_seconds)
    return ServedEntry(model.name, suffix, model.engine_dir, model.chat_template, model.device, memory)
