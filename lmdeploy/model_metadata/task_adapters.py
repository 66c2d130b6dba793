"""Task adapters (LoRA) of a checkpoint: those of Jina embeddings v3 and v5 in their original formats.

v5 has each in PEFT's form, in the folder ``adapters/TASK``; ``config.json`` names the tasks (``task_names``). v3's
``config.json`` names the tasks (``lora_adaptations``). A layer's weight is ``parametrizations.weight.original``;
``parametrizations.weight.0`` has ``lora_A`` and ``lora_B`` of all tasks: ``[tasks, rank, inputs]`` and
``[tasks, outputs, rank]`` of a linear layer, ``[tasks, rows, rank]`` and ``[tasks, rank, size]`` of embeddings. The
engine directory gets each task's as an adapter in PEFT's form.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError
from lmdeploy.model_metadata.pooling import tasks_in_folders
from lmdeploy.turbomind.families.encoders import is_of_head
from lmdeploy.turbomind.safetensors_index import read_checkpoint

_FOLDER = "tasks"
_NAMES = "tasks.json"
_DOWN, _UP = ".0.lora_A", ".0.lora_B"


def is_of_task(name: str) -> bool:
    """Return whether a tensor is one of the tasks' adapters."""
    return name.endswith((_DOWN, _UP))


def write_task_adapters(model_dir: Path, config: dict[str, Any], target: Path) -> None:
    """Write the adapters that a checkpoint has for tasks into an engine directory.

    Raises `CheckpointError` if ``config.json`` and the tensors do not agree.
    """
    for number, task in enumerate(folders := tasks_in_folders(config)):
        (target / _FOLDER / str(number)).mkdir(parents=True)
        for part in ("adapter_config.json", "adapter_model.safetensors"):
            source = model_dir / "adapters" / Path(str(task)).name / part
            if not source.is_file():
                raise CheckpointError(model_dir, [f"{source.relative_to(model_dir)} of task_names is missing"])
            shutil.copyfile(source, target / _FOLDER / str(number) / part)
    if folders:
        (target / _NAMES).write_text(json.dumps(folders), encoding="utf-8")
    tasks = config.get("lora_adaptations")
    if not tasks:
        return
    from safetensors import safe_open
    from safetensors.torch import save_file

    rank = config.get("lora_rank")
    if not isinstance(tasks, list) or not all(isinstance(task, str) and task for task in tasks):
        raise CheckpointError(model_dir, [f"lora_adaptations must be names of tasks, got {tasks!r}"])
    adapters: list[dict[str, Any]] = [{} for _ in tasks]
    for file in read_checkpoint(model_dir).files:
        with safe_open(file, "pt") as tensors:
            for name in filter(is_of_task, tensors.keys()):
                layer, _, kind = name.rpartition(".0.")
                if is_of_head(layer):
                    continue
                tensor = tensors.get_tensor(name)
                if tensor.dim() != 3 or len(tensor) != len(tasks):
                    shape = list(tensor.shape)
                    raise CheckpointError(model_dir, [f"{name} must be of {len(tasks)} tasks, got the shape {shape}"])
                is_table = "embeddings." in layer
                end = kind.replace("lora_", "lora_embedding_") if is_table else f"{kind}.weight"
                for adapter, of_task in zip(adapters, tensor.mT if is_table else tensor, strict=True):
                    adapter[f"base_model.model.{layer}.{end}"] = of_task.contiguous()
    if not adapters[0]:
        raise CheckpointError(model_dir, ["config.json has lora_adaptations, but there are no such tensors"])
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": config.get("lora_alpha"), "bias": "none"}
    for number, adapter in enumerate(adapters):
        folder = target / _FOLDER / str(number)
        folder.mkdir(parents=True)
        save_file(adapter, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(fields), encoding="utf-8")
    (target / _NAMES).write_text(json.dumps(tasks), encoding="utf-8")


def task_adapters(engine_dir: Path) -> dict[str, str]:
    """Return the folder of each task's adapter in an engine directory, by the task's name."""
    file = engine_dir / _NAMES
    if not file.is_file():
        return {}
    tasks = json.loads(file.read_text(encoding="utf-8"))
    return {task: str(engine_dir / _FOLDER / str(number)) for number, task in enumerate(tasks)}
