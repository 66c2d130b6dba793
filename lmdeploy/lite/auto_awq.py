"""`lmdeploy lite auto_awq`: from a checkpoint to one of 4-bit AWQ codes, a layer at a time.

Each finished layer is written into ``WORK_DIR/.auto_awq``, so that an interrupted run continues there.
"""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.lite import calibration
from lmdeploy.lite.awq_files import finish, pack, shard_names, write_shard
from lmdeploy.lite.awq_search import FIXED_RATIO, RATIOS, InputMoments, search_limits, search_scales
from lmdeploy.lite.decoder_layers import PREFIX, DecoderLayers, LayerCalls
from lmdeploy.lite.rounding import Grid, round_matrix
from lmdeploy.lite.scaled_groups import ScaledGroup, groups_of

logger = logging.getLogger(__name__)

_SCRATCH = ".auto_awq"
# Queries and keys meet in a product, where cutting both off adds up; the paper leaves them whole.
_NEVER_CUT = ("q_proj", "k_proj")
# A layer whose inputs are divided where they are made must stay the same function, but for float32's own rounding.
_SAME_FUNCTION = 1e-3


@dataclass(frozen=True)
class AwqSettings:
    """How to quantize.

    Parameters
    ----------
    w_bits, w_group_size, w_sym
        Bits of a code; inputs that share a scale, -1: all of a row; whether the zero point is the middle code.
    calib_dataset, calib_samples, calib_seqlen
        Text (see :func:`lmdeploy.lite.calibration.load_text`), and how many pieces of how many tokens to take of it.
    batch_size
        Pieces to compute at a time.
    search_scale
        Search the factors of each group of layers, instead of taking the ratio 0.5 for all.
    device
        ``cpu`` or ``cuda``.
    dtype
        Of what is not quantized: ``auto`` (float16), ``float16``, ``bfloat16``.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    w_bits: int = 4
    w_group_size: int = 128
    w_sym: bool = False
    calib_dataset: str | None = None
    calib_samples: int = 128
    calib_seqlen: int = 2048
    batch_size: int = 1
    search_scale: bool = False
    device: str = "cpu"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.w_bits != 4:
            raise ValueError(f"w_bits must be 4, the only size of AWQ's format, got {self.w_bits}")
        if self.w_group_size != -1 and (self.w_group_size < 8 or self.w_group_size % 8):
            raise ValueError(f"w_group_size must be -1 or a multiple of 8, got {self.w_group_size}")
        for name in ("calib_samples", "calib_seqlen", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is cuda, but torch sees no CUDA device; use cpu")

    @property
    def stored_dtype(self) -> str:
        """Type of what is not quantized."""
        return "float16" if self.dtype == "auto" else self.dtype

    def grid(self, in_features: int) -> Grid:
        """Return what a weight of so many inputs is rounded to."""
        return Grid(self.w_bits, in_features if self.w_group_size == -1 else self.w_group_size, self.w_sym)


def auto_awq(
    model_dir: Path,
    work_dir: Path,
    settings: AwqSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write a 4-bit AWQ checkpoint of a model into ``work_dir``, continuing an interrupted run of the same settings.

    Parameters
    ----------
    model_dir
        A Hugging Face directory with weights that are not quantized.
    work_dir
        Folder of the new checkpoint. ``config.json`` is written last: without it, the checkpoint is not complete.
    settings
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
        If sizes do not fit the group size, or the calibration text cannot be had.
    FileExistsError
        If ``work_dir`` holds a model, or an interrupted run with other settings.
    """
    from lmdeploy.tokenizer import Tokenizer
    from lmdeploy.turbomind.checkpoint import read_config

    config = read_config(model_dir)
    if config.get("quantization_config"):
        raise CheckpointError(model_dir, ["is quantized already; give the original model"])
    text = calibration.load_text(settings.calib_dataset)
    samples = calibration.samples_of(text, Tokenizer(str(model_dir)), settings.calib_samples, settings.calib_seqlen)
    layers = DecoderLayers(model_dir, torch.device(settings.device))
    for number in range(len(layers)):
        groups_of(layers.shape_of(number), layers.name, layers.head_dim)
    _check_sizes(layers, settings)
    scratch = _open_work_dir(work_dir, model_dir, settings, calibration.digest(samples))
    tokens = sum(map(len, samples))
    logger.info("calibrating with %d pieces of text, %d tokens", len(samples), tokens)

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
                tensors = _quantize(layers, layer, number, calls, settings)
                write_shard(_converted(tensors, settings.stored_dtype), scratch / shards[number])
        progress(number + 1, len(layers))
    finish(model_dir, scratch, work_dir, shards, settings.grid(-1), settings.stored_dtype)
    shutil.rmtree(scratch)
    return work_dir


def _check_sizes(layers: DecoderLayers, settings: AwqSettings) -> None:
    """Refuse weights that the format cannot hold, before any work is done."""
    problems = []
    for name, info in layers.files.index.tensors.items():
        if not name.startswith(f"{PREFIX}0.") or not name.endswith("_proj.weight") or len(info.shape) != 2:
            continue
        out_features, in_features = info.shape
        if in_features % settings.grid(in_features).group:
            sizes = [size for size in (128, 64, 32, 16, 8) if in_features % size == 0]
            problems.append(
                f"{name.removeprefix(PREFIX + '0.')} has {in_features} inputs, no multiple of w_group_size "
                f"{settings.w_group_size}; these would do: {', '.join(map(str, [-1, *sizes]))}"
            )
        if out_features % 8:
            problems.append(f"{name} has {out_features} outputs, which must be a multiple of 8")
    if problems:
        raise ValueError("; ".join(problems))


def _open_work_dir(work_dir: Path, model_dir: Path, settings: AwqSettings, text: str) -> Path:
    """Return the folder for unfinished work, new or left by an interrupted run of the same kind."""
    if (work_dir / "config.json").exists():
        raise FileExistsError(f"{work_dir} holds a model already: choose another --work-dir")
    scratch = work_dir / _SCRATCH
    weights = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(model_dir.glob("*.safetensors"))
    ]
    run = {"model": str(model_dir), "weights": repr(weights), "text": text, **asdict(settings)}
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


def _quantize(
    layers: DecoderLayers, layer: nn.Module, number: int, calls: LayerCalls, settings: AwqSettings
) -> dict[str, Tensor]:
    """Return the tensors of a quantized layer; ``calls`` moves on to the next one."""
    groups = groups_of(layer, layers.name, layers.head_dim)
    moments, outputs = _observe(layer, number, calls, groups)
    for group, observed in zip(groups, moments, strict=True):
        weights = [consumer.weight for _, consumer in group.consumers]
        grid = settings.grid(weights[0].shape[1])
        ratios = RATIOS if settings.search_scale else (FIXED_RATIO,)
        scales = search_scales(weights, observed, grid, ratios, group.tie)
        group.apply(scales)
        observed.divide_by(scales)
    _check_function(layers.name, layer, number, calls, outputs)
    calls.hidden = outputs

    prefix = f"{PREFIX}{number}."
    tensors = {prefix + name: tensor for name, tensor in layer.state_dict().items()}
    for group, observed in zip(groups, moments, strict=True):
        for name, consumer in group.consumers:
            grid = settings.grid(consumer.in_features)
            is_cut = not name.endswith(_NEVER_CUT)
            limits = search_limits(consumer.weight, observed, grid) if is_cut else None
            del tensors[f"{prefix}{name}.weight"]
            packed = pack(round_matrix(consumer.weight, grid, limits))
            tensors |= {f"{prefix}{name}.{part}": tensor for part, tensor in packed.items()}
    return tensors


def _observe(
    layer: nn.Module, number: int, calls: LayerCalls, groups: list[ScaledGroup]
) -> tuple[list[InputMoments], list[Tensor]]:
    """Return the moments of each group's inputs, and the layer's outputs."""
    moments, hooks = [], []
    for group in groups:
        consumer = group.consumers[0][1]
        observed = InputMoments.empty(consumer.in_features, consumer.weight.device)
        moments.append(observed)

        def note(module: nn.Module, args: tuple[Tensor, ...], observed: InputMoments = observed) -> None:
            observed.add(args[0])

        hooks.append(consumer.register_forward_pre_hook(note))
    outputs = list(calls.run(number, layer))
    for hook in hooks:
        hook.remove()
    return moments, outputs


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
        is_number = tensor.is_floating_point() and not name.endswith(".scales")
        stored[name] = (tensor.to(target) if is_number else tensor).contiguous().cpu()
        if is_number and not stored[name].isfinite().all():
            raise ValueError(f"tensor {name} has numbers that are too large for {dtype}; use --dtype bfloat16")
    return stored
