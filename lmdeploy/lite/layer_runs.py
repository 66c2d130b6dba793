"""Layer-by-layer quantization of a checkpoint, for every method.

A method looks at the inputs of linear layers, divides them where they are made and multiplies the weights instead, and
rounds these. Each finished layer is written into a folder in the work directory, and so are the inputs of the next one,
so that an interrupted run continues there.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.lite import calibration
from lmdeploy.lite.checkpoint_files import converted, finish, rest_shards, shard_names, write_shard
from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.lite.hidden_states import HiddenStates
from lmdeploy.lite.method import Method
from lmdeploy.lite.quantized_layer import QuantizedLayer, left_as_numbers, quantized_shapes
from lmdeploy.lite.settings import RunSettings
from lmdeploy.lite.source_model import SourceModel
from lmdeploy.lite.work_dir import open_work_dir

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

# A layer whose inputs are divided where they are made must stay the same function, but for float32's own rounding.
_SAME_FUNCTION = 1e-3


def quantize(
    model_dir: Path, work_dir: Path, method: Method[Any], *, progress: Progress = lambda done, total: None
) -> Path:
    """Write a quantized checkpoint of a model into ``work_dir``, continuing an interrupted run of the same settings.

    Raises `UnsupportedModelError` if the engine does not serve the model, or its layers are stored in a way that the
    format has no form for, `CheckpointError` if the checkpoint is incomplete, or quantized already, `ValueError` if
    sizes do not fit the method, or the calibration text cannot be loaded, and `FileExistsError` if ``work_dir`` holds a
    model, or an interrupted run with other settings. ``model_dir``: a Hugging Face directory with weights that are not
    quantized. ``work_dir``: folder of the new checkpoint. ``config.json`` is written last: without it, the checkpoint
    is not complete. ``progress``: called with the number of finished layers, and of all.

    Returns
    -------
    Path
        ``work_dir``.
    """
    settings = method.settings
    model = SourceModel(model_dir, torch.device(settings.device))
    method = method.fitted_to(quantized_shapes(model))
    batches, text = calibration_batches(model, settings)
    scratch = open_work_dir(work_dir, model.directory, method.name, settings, text)

    rest = rest_shards(model)
    shards = shard_names(len(model) + len(rest))
    is_done = [(scratch / name).exists() or (work_dir / name).exists() for name in shards]
    in_decoder = model.tensors_of_decoder()
    for number, names in enumerate(rest, len(model)):
        if not is_done[number]:
            stored = {name: model.files.tensor(name) for name in names}
            decoder = converted({n: t for n, t in stored.items() if n in in_decoder}, settings.stored_dtype)
            write_shard({name: decoder.get(name, tensor) for name, tensor in stored.items()}, scratch / shards[number])

    def make(number: int, layer: LayerWeights, hidden: HiddenStates) -> None:
        tensors = _quantized(model, number, layer, hidden, method)
        write_shard(tensors, scratch / shards[number])

    walk(model, batches, scratch, is_done[: len(model)], make, progress)
    quantization = method.quantization_config(left_as_numbers(model, method))
    finish(model.directory, scratch, work_dir, shards, quantization, settings.stored_dtype)
    shutil.rmtree(scratch)
    return work_dir


def calibration_batches(model: SourceModel, settings: RunSettings) -> tuple[list[Tensor], str]:
    """Return token ids ``[samples, tokens]`` of the calibration text, and a hash of them."""
    from lmdeploy.tokenizer import Tokenizer

    text = calibration.load_text(settings.calib_dataset)
    length = min(settings.calib_seqlen, model.max_text_len())
    if length < settings.calib_seqlen:
        logger.info("%s reads %d tokens at a time: pieces are as long", model.name, length)
    samples = calibration.samples_of(text, Tokenizer(str(model.directory)), settings.calib_samples, length)
    logger.info("calibrating with %d pieces of text, %d tokens", len(samples), sum(map(len, samples)))
    return _batches(samples, settings.batch_size), calibration.digest(samples)


def walk(
    model: SourceModel,
    batches: list[Tensor],
    scratch: Path,
    is_done: Sequence[bool],
    make: Callable[[int, LayerWeights, HiddenStates], None],
    progress: Progress,
) -> None:
    """Go through the layers, from the first that is not done on.

    ``make`` is called with each layer's number, weights and inputs, and must keep the inputs of the next one.
    """
    hidden = HiddenStates(scratch, [tuple(batch.shape) for batch in batches], model.row_width, model.device)
    first = next((number for number in range(len(model)) if not is_done[number]), len(model))
    begin = first if hidden.has(first) else 0
    with torch.no_grad():
        if begin == 0 and first < len(model):
            hidden.write(0, model.embedded(batches))
        for number in range(begin, len(model)):
            if first == len(model):
                break
            layer = model.layer(number)
            if number < first:
                hidden.write(number + 1, (model.run(number, layer, batch) for batch in hidden.read(number)))
            else:
                make(number, layer, hidden)
                hidden.drop(number)
            progress(number + 1, len(model))


def _batches(samples: list[list[int]], size: int) -> list[Tensor]:
    """Return the samples as batches of equal lengths, ``[samples, tokens]``."""
    batches: list[list[list[int]]] = []
    for sample in samples:
        if batches and len(batches[-1]) < size and len(batches[-1][0]) == len(sample):
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return [torch.tensor(batch) for batch in batches]


def _quantized(
    model: SourceModel, number: int, layer: LayerWeights, hidden: HiddenStates, method: Method[Any]
) -> dict[str, Tensor]:
    """Return the stored form of a layer, and keep its outputs as the inputs of the next one."""
    work = QuantizedLayer(model, number, layer, method)

    def outputs() -> Iterator[Tensor]:
        for batch in hidden.read(number):
            yield model.run(number, layer, batch)

    with work.watching(work.parts[0]):
        hidden.write(number + 1, outputs())
    work.make(work.parts[0])
    for part in work.parts[1:]:
        with work.watching(part):
            for _ in outputs():
                pass
        work.make(part)
    _check_function(model, number, layer, hidden)
    return work.stored()


def _check_function(model: SourceModel, number: int, layer: LayerWeights, hidden: HiddenStates) -> None:
    """Refuse a model whose layers are not the function that ``scaled_groups`` takes them for."""
    before, after = next(hidden.read(number)), next(hidden.read(number + 1))
    changed = (after - before).norm().clamp(min=torch.finfo(before.dtype).tiny)  # a layer may compute nothing
    error = (model.run(number, layer, before) - after).norm() / changed
    if not error <= _SAME_FUNCTION:
        raise UnsupportedModelError(
            f"{model.name} cannot be quantized: dividing its norms and weights changes what layer {number} computes "
            f"(by {float(error):.2g})"
        )
