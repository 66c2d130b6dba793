"""From a checkpoint to a quantized one, a layer at a time, by a method of whatever kind.

A method looks at the inputs of linear layers, divides them where they are made and multiplies the weights instead, and
rounds these. Each finished layer is written into a folder in the work directory, so that an interrupted run continues
there.
"""

import json
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.lite import calibration
from lmdeploy.lite.checkpoint_files import finish, shard_names, write_shard
from lmdeploy.lite.decoder_layers import PREFIX, DecoderLayers, LayerCalls
from lmdeploy.lite.scaled_groups import ScaledGroup, groups_of

logger = logging.getLogger(__name__)

# A layer whose inputs are divided where they are made must stay the same function, but for float32's own rounding.
_SAME_FUNCTION = 1e-3


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every method has to be told.

    Parameters
    ----------
    calib_dataset, calib_samples, calib_seqlen
        Text (see :func:`lmdeploy.lite.calibration.load_text`), and how many pieces of how many tokens to take of it.
    batch_size
        Pieces to compute at a time.
    device
        ``cpu`` or ``cuda``.
    dtype
        Of what is not quantized: ``auto`` (float16), ``float16``, ``bfloat16``.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    calib_dataset: str | None = None
    calib_samples: int = 128
    calib_seqlen: int = 2048
    batch_size: int = 1
    device: str = "cpu"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("calib_samples", "calib_seqlen", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is cuda, but torch sees no CUDA device; use cpu")

    @property
    def stored_dtype(self) -> str:
        """Type of what is not quantized."""
        return "float16" if self.dtype == "auto" else self.dtype


class Observed(Protocol):
    """What a method remembers of the inputs of linear layers."""

    def add(self, x: Tensor) -> None:
        """Take note of inputs ``[..., in]``."""

    def divide_by(self, scales: Tensor) -> None:
        """Become what there would be to remember of the same inputs divided by ``scales`` ``[in]``."""


Seen = TypeVar("Seen", bound=Observed)


class Method(ABC, Generic[Seen]):
    """How weights are quantized.

    Attributes
    ----------
    name
        Of the command; the folder for unfinished work is named after it.
    settings
        What the user chose.
    """

    name: str
    settings: RunSettings

    def check_sizes(self, layers: DecoderLayers) -> None:
        """Refuse weights that the format cannot hold with a ``ValueError``, before any work is done."""

    @abstractmethod
    def observe(self, consumer: nn.Linear) -> Seen:
        """Return what has been seen of a layer's inputs before the first."""

    @abstractmethod
    def scales(self, group: ScaledGroup, observed: Seen) -> Tensor:
        """Return the factors of the weights, and divisors of the inputs, of a group, ``[in]``."""

    @abstractmethod
    def codes(self, name: str, weight: Tensor, observed: Seen) -> dict[str, Tensor]:
        """Return what is stored for layer ``name`` in place of ``weight`` ``[out, in]``, by the ends of their names."""

    @abstractmethod
    def quantization_config(self) -> dict[str, Any]:
        """Return what config.json says of the codes."""


def quantize(
    model_dir: Path,
    work_dir: Path,
    method: Method[Any],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write a quantized checkpoint of a model into ``work_dir``, continuing an interrupted run of the same settings.

    Parameters
    ----------
    model_dir
        A Hugging Face directory with weights that are not quantized.
    work_dir
        Folder of the new checkpoint. ``config.json`` is written last: without it, the checkpoint is not complete.
    method
        How to quantize.
    progress
        Called with the number of finished layers, and of all.

    Returns
    -------
    Path
        ``work_dir``.

    Raises
    ------
    UnsupportedModelError
        If the model's layers are not built like Llama's.
    CheckpointError
        If the checkpoint is incomplete, or quantized already.
    ValueError
        If sizes do not fit the method, or the calibration text cannot be had.
    FileExistsError
        If ``work_dir`` holds a model, or an interrupted run with other settings.
    """
    from lmdeploy.tokenizer import Tokenizer
    from lmdeploy.turbomind.checkpoint import read_config

    config, settings = read_config(model_dir), method.settings
    if config.get("quantization_config"):
        raise CheckpointError(model_dir, ["is quantized already; give the original model"])
    text = calibration.load_text(settings.calib_dataset)
    samples = calibration.samples_of(text, Tokenizer(str(model_dir)), settings.calib_samples, settings.calib_seqlen)
    layers = DecoderLayers(model_dir, torch.device(settings.device))
    for number in range(len(layers)):
        groups_of(layers.shape_of(number), layers.name, layers.head_dim)
    method.check_sizes(layers)
    scratch = _open_work_dir(work_dir, model_dir, method, calibration.digest(samples))
    logger.info("calibrating with %d pieces of text, %d tokens", len(samples), sum(map(len, samples)))

    shards = shard_names(len(layers) + 1)
    is_done = [(scratch / name).exists() or (work_dir / name).exists() for name in shards]
    if not is_done[-1]:
        write_shard(_converted(_rest_of(layers), settings.stored_dtype), scratch / shards[-1])
    calls = layers.calls(_batches(samples, settings.batch_size))
    for number in range(len(layers)):
        layer = layers.layer(number)
        with torch.no_grad():
            if is_done[number]:
                calls.hidden = list(calls.run(number, layer))
            else:
                write_shard(_quantize_layer(layers, layer, number, calls, method), scratch / shards[number])
        progress(number + 1, len(layers))
    finish(model_dir, scratch, work_dir, shards, method.quantization_config(), settings.stored_dtype)
    shutil.rmtree(scratch)
    return work_dir


def _open_work_dir(work_dir: Path, model_dir: Path, method: Method[Any], text: str) -> Path:
    """Return the folder for unfinished work, new or left by an interrupted run of the same kind."""
    if (work_dir / "config.json").exists():
        raise FileExistsError(f"{work_dir} holds a model already: choose another --work-dir")
    scratch = work_dir / f".{method.name}"
    weights = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(model_dir.glob("*.safetensors"))
    ]
    run = {"model": str(model_dir), "weights": repr(weights), "text": text, **asdict(method.settings)}
    del run["batch_size"], run["device"]  # they change nothing but the time
    note = scratch / "settings.json"
    if not note.exists():
        scratch.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(run), encoding="utf-8")
        return scratch
    old: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    if old != run:
        changed = sorted(key for key in run if old.get(key) != run[key])
        raise FileExistsError(
            f"{work_dir} holds an interrupted run that differs in {', '.join(changed)}: continue it with the same "
            f"settings, choose another --work-dir, or delete {scratch}"
        )
    logger.info("continuing the interrupted run in %s", scratch)
    return scratch


def _rest_of(layers: DecoderLayers) -> dict[str, Tensor]:
    """Return every tensor that belongs to no decoder layer."""
    names = [name for name in layers.files.index.tensors if not name.startswith(PREFIX)]
    return {name: layers.files.tensor(name) for name in names}


def _batches(samples: list[list[int]], size: int) -> list[Tensor]:
    """Return the samples as batches of equal lengths, ``[samples, tokens]``."""
    batches: list[list[list[int]]] = []
    for sample in samples:
        if batches and len(batches[-1]) < size and len(batches[-1][0]) == len(sample):
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return [torch.tensor(batch) for batch in batches]


def _quantize_layer(
    layers: DecoderLayers, layer: nn.Module, number: int, calls: LayerCalls, method: Method[Seen]
) -> dict[str, Tensor]:
    """Return what is stored of a layer; ``calls`` moves on to the next one."""
    groups = groups_of(layer, layers.name, layers.head_dim)
    inputs, outputs = _observe(layer, number, calls, groups, method)
    for group, observed in zip(groups, inputs, strict=True):
        scales = method.scales(group, observed)
        group.apply(scales)
        observed.divide_by(scales)
    _check_function(layers.name, layer, number, calls, outputs)
    calls.hidden = outputs

    prefix = f"{PREFIX}{number}."
    numbers = {prefix + name: tensor for name, tensor in layer.state_dict().items()}
    codes: dict[str, Tensor] = {}
    for group, observed in zip(groups, inputs, strict=True):
        for name, consumer in group.consumers:
            del numbers[f"{prefix}{name}.weight"]
            stored = method.codes(name, consumer.weight, observed)
            codes |= {f"{prefix}{name}.{part}": tensor.cpu() for part, tensor in stored.items()}
    return _converted(numbers, method.settings.stored_dtype) | codes


def _observe(
    layer: nn.Module, number: int, calls: LayerCalls, groups: list[ScaledGroup], method: Method[Seen]
) -> tuple[list[Seen], list[Tensor]]:
    """Return what is to be remembered of each group's inputs, and the layer's outputs."""
    inputs, hooks = [], []
    for group in groups:
        consumer = group.consumers[0][1]
        observed = method.observe(consumer)
        inputs.append(observed)

        def note(module: nn.Module, args: tuple[Tensor, ...], observed: Seen = observed) -> None:
            observed.add(args[0])

        hooks.append(consumer.register_forward_pre_hook(note))
    outputs = list(calls.run(number, layer))
    for hook in hooks:
        hook.remove()
    return inputs, outputs


def _check_function(name: str, layer: nn.Module, number: int, calls: LayerCalls, outputs: list[Tensor]) -> None:
    """Refuse a model whose layers are not the function that :func:`groups_of` takes them for."""
    now = next(calls.run(number, layer))
    error = (now - outputs[0]).norm() / (outputs[0] - calls.hidden[0]).norm()
    if not error <= _SAME_FUNCTION:
        raise UnsupportedModelError(
            f"{name} cannot be quantized: dividing its norms and weights changes what layer {number} computes "
            f"(by {float(error):.2g}); layers like Llama's are supported"
        )


def _converted(tensors: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return tensors as they are stored.

    Raises
    ------
    ValueError
        If a number is too large for the type.
    """
    target = getattr(torch, dtype)
    stored = {}
    for name, tensor in tensors.items():
        is_number = tensor.is_floating_point()
        stored[name] = (tensor.to(target) if is_number else tensor).contiguous().cpu()
        if is_number and not stored[name].isfinite().all():
            raise ValueError(f"tensor {name} has numbers that are too large for {dtype}; use --dtype bfloat16")
    return stored
