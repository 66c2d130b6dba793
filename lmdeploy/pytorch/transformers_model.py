"""Causal language models of ``transformers`` on our attention and, on a CPU, our linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.logs import without_bars
from lmdeploy.pytorch.adapted_layers import pattern_of
from lmdeploy.pytorch.adapters import AdapterTable
from lmdeploy.pytorch.cpu_kernels import Kernels, Matrix
from lmdeploy.pytorch.models.hf_config import transformers_config
from lmdeploy.pytorch.native_layers import NativeEmbedding, NativeLinear, StoredWeight, rms_norm_of
from lmdeploy.pytorch.quantized_gpu_layers import gpu_linear_of
from lmdeploy.pytorch.quantized_weights import QuantizedWeights, quantized_weights
from lmdeploy.pytorch.ranks import Ranks
from lmdeploy.pytorch.recording import RecordingCache, differing_module, failing_module
from lmdeploy.pytorch.replacing import attention_interface
from lmdeploy.pytorch.replacing.experts import (
    NativeExperts,
    fill_with_numbers,
    is_experts,
    is_quantized,
    layer_of,
    numbers_among_quantized,
    quantized_experts,
)
from lmdeploy.pytorch.replacing.prompt_rotary import swap_rotaries
from lmdeploy.pytorch.replacing.recurrent_layers import keeps_state, recurrent_layer_of
from lmdeploy.pytorch.served_by_transformers import KEEPS_NOTHING, model_class_of, reject_unsupported
from lmdeploy.pytorch.step_context import StepContext, get_step_ctx_manager
from lmdeploy.pytorch.text_part.image_inputs import let_see
from lmdeploy.pytorch.text_part.tensors import text_tensors
from lmdeploy.pytorch.weight_loader.model_weight_loader import tensors_of
from lmdeploy.pytorch.weight_loader.mxfp4 import decode_stacks

_TRIED_TOKENS, _TRIED_NEIGHBOUR = 32, 8  # the first of them are another sequence
# Of the largest logit. Attention written differently is off by 1e-6 in float32, by a few hundredths in 16 bits.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-2, 0.1


class TransformersModel:
    """A model of ``transformers`` that runs steps.

    Raises `UnsupportedModelError` if the model does something that this engine cannot. ``checkpoint``: a Hugging Face
    directory. ``dtype``: type of the weights; ``auto``: the checkpoint's. ``ranks``: this process among those that run
    the model. ``device``: where it runs.
    """

    def __init__(
        self, checkpoint: Path, dtype: str, kernels: Kernels | None, ranks: Ranks, device: torch.device | str = "cpu"
    ) -> None:
        attention_interface.register()
        config = transformers_config(checkpoint)
        reject_unsupported(checkpoint, config)
        quantized = quantized_weights(checkpoint)
        model = _load(checkpoint, config, dtype, quantized)
        self.dtype: torch.dtype = model.dtype
        self._device = torch.device(device)
        self.adapters = AdapterTable(self._device)
        self._kernels = kernels  # the engine's operators for CPUs; None: plain PyTorch, in the weights' type
        self._stretches = swap_rotaries(model)
        let_see(model, checkpoint)
        _swap_recurrent_layers(checkpoint, model, kernels)
        _swap_experts(checkpoint, model, kernels, ranks, quantized)
        self.layers = _divide_and_swap(model, kernels, ranks, self.adapters, quantized)
        model = model if kernels is None else model.float()
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._last_hidden: torch.Tensor | None = None
        head = model.get_output_embeddings()
        head.register_forward_pre_hook(self._keep_hidden)
        tried = self._try(checkpoint)
        self.shapes, self.windows, self.states = tried.shapes, tried.windows, tried.states

    def forward(self, step: StepContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[logits, vocab]`` and, after the last norm, hidden states ``[logits, hidden]``; float32."""
        with get_step_ctx_manager().context(step):
            output = self._model(
                **self._tokens(step),
                position_ids=step.position_ids,
                use_cache=False,
                logits_to_keep=step.logits_indices,
            )
        assert self._last_hidden is not None
        logits, hidden = output.logits[0], self._last_hidden[0]
        if len(logits) != len(step.logits_indices):  # some models' code keeps all rows
            logits, hidden = logits[step.logits_indices], hidden[step.logits_indices]
        return logits.float(), hidden.float()

    def _tokens(self, step: StepContext) -> dict[str, torch.Tensor]:
        if step.input_embeddings is None:
            return {"input_ids": step.input_ids}
        return {"inputs_embeds": step.embed(self._model.get_input_embeddings())}

    def can_capture(self, _: StepContext) -> bool:
        """Return whether nothing is looked up on the host; whether it succeeds is seen when it is tried."""
        return not self._stretches

    def _keep_hidden(self, _: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        self._last_hidden = given[0]

    def _try(self, checkpoint: Path) -> RecordingCache:
        """Run some tokens after another sequence's with our attention, and alone with the model's own.

        Raises `UnsupportedModelError` if the logits differ: attention computes something else, or something keeps what
        no cache here has. Returns what the layers keep.
        """
        vocab = self._model.config.get_text_config().vocab_size
        everything = torch.arange(_TRIED_TOKENS, device=self._device)
        tokens, logits_indices = (everything * 7919 + 11) % vocab, everything[_TRIED_NEIGHBOUR + 1 :: 2]
        ids = tokens[_TRIED_NEIGHBOUR:]
        recording = RecordingCache()

        def packed(cache: RecordingCache) -> torch.Tensor:
            return self.forward(cache.step(tokens, logits_indices, self._kernels, _TRIED_NEIGHBOUR))[0]

        def alone() -> torch.Tensor:
            step = RecordingCache().step(ids, logits_indices - _TRIED_NEIGHBOUR, self._kernels)
            with _hf_attention(self._model), get_step_ctx_manager().context(step):
                logits: torch.Tensor = self._model(input_ids=ids[None], use_cache=False).logits[0, step.logits_indices]
            return logits.float()

        try:
            with torch.inference_mode():
                native, reference = packed(recording), alone()
        except UnsupportedModelError:
            raise
        except Exception as error:
            where = failing_module(self._model, error)
            raise UnsupportedModelError(f"{checkpoint}: {_sentence(where, error)}") from error
        text = self._model.config.get_text_config()
        kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
        layers = sum(kind not in KEEPS_NOTHING for kind in kinds)
        if missing := layers - len({*recording.shapes, *recording.states}):
            raise UnsupportedModelError(
                f"{checkpoint}: {missing} of its {layers} layers keep something else than keys and values, or a state "
                "that this engine knows"
            )
        off = float((native - reference).abs().max() / reference.abs().max().clamp_min(1e-30))
        is_float32 = self._device.type == "cpu" or self.dtype == torch.float32
        tolerance = _TOLERANCE if is_float32 else _TOLERANCE_OF_16_BITS
        if not off <= tolerance:
            name = differing_module(self._model, lambda: packed(RecordingCache()), alone, _TRIED_NEIGHBOUR, tolerance)
            raise UnsupportedModelError(
                f"{checkpoint}: {name or 'the model'} computes something else alongside another sequence, with this "
                f"engine's attention, than alone with its own: logits are off by {off:.1%}"
            )
        return recording


def _load(checkpoint: Path, config: Any, dtype: str, quantized: QuantizedWeights | None) -> Any:
    found: Any = model_class_of(config)
    torch_dtype: Any = dtype if dtype == "auto" else getattr(torch, dtype)
    given: dict[str, Any] = {"config": config, "attn_implementation": attention_interface.NAME}
    if quantized is None and text_tensors(checkpoint) is None:
        with without_bars():
            return found.from_pretrained(checkpoint, dtype=torch_dtype, **given)
    if hasattr(config, "quantization_config"):  # a text part's config.json has none
        del config.quantization_config
    if dtype == "auto":
        torch_dtype = getattr(config, "dtype", None) or torch.float16
    numbers = {
        name: tensor for name, tensor in tensors_of(checkpoint) if quantized is None or name not in quantized.hidden
    }
    problems = decode_stacks(numbers, torch_dtype)
    if problems := problems + numbers_among_quantized(numbers, quantized_experts(quantized)):
        raise CheckpointError(checkpoint, problems)
    with without_bars():
        model, found_keys = found.from_pretrained(
            None, state_dict=numbers, dtype=torch_dtype, output_loading_info=True, **given
        )
    _require_all(checkpoint, found_keys, quantized)
    return model


def _require_all(checkpoint: Path, keys: dict[str, Any], quantized: QuantizedWeights | None) -> None:
    """Raise ``CheckpointError`` unless every weight is there, as a number or as codes."""
    experts = quantized_experts(quantized)
    of_experts = {name for names in experts.values() for name in names.values()}
    layers = set() if quantized is None else quantized.shapes.keys() - of_experts
    missing = {
        name
        for name in keys["missing_keys"]
        if name.removesuffix(".weight") not in layers and not is_quantized(name, experts)
    }
    strange = sorted(layer for layer in layers if f"{layer}.weight" not in keys["missing_keys"])
    problems = [f"tensor {name} is missing" for name in sorted(missing)]
    problems += [f"the codes of {layer} are of no linear layer that transformers has" for layer in strange]
    if problems:
        raise CheckpointError(checkpoint, problems)


def _sentence(module: str, error: Exception) -> str:
    """Return an error of modelling code in a line."""
    return f"{module or 'it'} cannot run here: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextmanager
def _hf_attention(model: Any) -> Iterator[None]:
    """Let a model attend as its authors wrote it."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(attention_interface.NAME)


# ---- matrices ----


def _swap_recurrent_layers(checkpoint: Path, model: Any, kernels: Kernels | None) -> None:
    """Put our layers in the place of those that keep a state; every rank keeps the whole state."""
    for name, module in list(model.named_modules()):
        if not keeps_state(module):
            continue
        if kernels is None:
            raise UnsupportedModelError(f"{checkpoint}: linear attention runs on CPUs alone in the PyTorch engine")
        try:
            _put(model, name, recurrent_layer_of(module, kernels))
        except ValueError as error:
            raise UnsupportedModelError(f"{checkpoint}: {error}") from error


def _swap_experts(
    checkpoint: Path, model: Any, kernels: Kernels | None, ranks: Ranks, quantized: QuantizedWeights | None
) -> None:
    """Put our experts in the place of those of ``transformers``; without kernels, numbers in the place of codes."""
    names = quantized_experts(quantized)
    for name, module in list(model.named_modules()):
        if not is_experts(module):
            continue
        if kernels is None and ranks.count > 1:
            raise UnsupportedModelError(f"{checkpoint}: tp is not supported with experts of transformers on GPUs")
        source = names.get(layer_of(name))
        try:
            if kernels is not None:
                _put(model, name, NativeExperts(module, kernels, ranks, quantized, source))
            elif quantized is not None and source:
                fill_with_numbers(module, quantized, source)
        except ValueError as error:
            raise CheckpointError(checkpoint, [f"{name}: {error}"]) from error


def _put(model: Any, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one of this name, with the attributes that modelling code knows of that one."""
    for attribute, value in vars(model.get_submodule(name)).items():
        if not attribute.startswith("_") and not hasattr(module, attribute):
            setattr(module, attribute, value)
    parent, _, key = name.rpartition(".")
    setattr(model.get_submodule(parent), key, module)


def _divide_and_swap(
    model: Any, kernels: Kernels | None, ranks: Ranks, adapters: AdapterTable, quantized: QuantizedWeights | None
) -> dict[str, tuple[int, int]]:
    """Put our layers in the place of ``torch.nn``'s, each rank's part of them; without kernels, linear ones alone.

    Returns for the linear layers of the decoder, in whose names ``*`` stands for a number: the shape of the weight.
    """
    shapes: dict[str, tuple[int, int]] = {}
    head = model.get_output_embeddings()
    plan = _Plan(model, ranks)
    from transformers.pytorch_utils import Conv1D

    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            weight = Weight(name, module.weight, quantized, is_head=module is head)
            made: nn.Module = plan.linear(name, weight, module.bias, kernels)
            assert isinstance(made, NativeLinear)
            if module is not head:
                plan.adapt(name, made, weight.shape, adapters)
                shapes[pattern_of(name)] = weight.shape
            del module.weight, weight  # which would be in memory beside its tiles until all layers are swapped
        elif type(module) is Conv1D:
            made = plan.linear(name, Weight(name, module.weight.t(), None), module.bias, kernels)
            if kernels is not None:
                made.weight = StoredWeight(tuple(module.weight.shape), made.weight.t)
        elif kernels is None:
            continue
        elif type(module) is nn.Embedding and module.weight.dtype in (torch.float32, torch.bfloat16, torch.float16):
            made = NativeEmbedding(module.weight, kernels)
        elif norm := rms_norm_of(module, kernels):
            made = norm
        else:
            continue
        _put(model, name, made)
    plan.require_all_used()
    return shapes


# Styles of dividing a layer: embeddings stay whole on every rank.
_WHOLE = ("", "replicate", "replicated_with_grad_allreduce", "embedding_rowwise", "embedding_colwise")
_BY_INPUTS = "rowwise"
_BY_GATHERED_OUTPUTS = ("colwise_rep", "colwise_gather_output")


class _Plan:
    """How a model is divided: the plan that its authors wrote for ``transformers``."""

    def __init__(self, model: Any, ranks: Ranks) -> None:
        self._ranks = ranks
        plan = dict(model.tp_plan or {}) if ranks.count > 1 else {}
        self._styles: dict[str, str] = {name: style for name, style in plan.items() if ".experts" not in name}
        self._unused = {name for name, style in self._styles.items() if style not in _WHOLE}
        if ranks.count > 1 and not self._unused:
            raise UnsupportedModelError(f"{type(model).__name__}: transformers has no plan for more than one device")
        text = model.config.get_text_config()
        if heads := getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", 0):
            ranks.slice_of(heads, "the number of key and value heads")
        known = {*_WHOLE, "colwise", _BY_INPUTS, *_BY_GATHERED_OUTPUTS}
        unknown = sorted(set(self._styles.values()) - known)
        if unknown:
            raise UnsupportedModelError(f"{type(model).__name__}: tp is not supported with {', '.join(unknown)}")

    def linear(self, name: str, weight: Weight, bias: torch.Tensor | None, kernels: Kernels | None) -> NativeLinear:
        """Return this rank's part of a layer."""
        self._unused.discard(pattern_of(name))
        outputs, inputs = self._parts(name, weight.shape)
        style = self._styles.get(pattern_of(name), "")
        if style == _BY_INPUTS:
            rank_bias = bias if self._ranks.rank == 0 else None  # summed with the others
            return weight.linear(outputs, inputs, rank_bias, kernels, ranks=self._ranks)
        rank_bias = None if bias is None else bias[outputs]
        return weight.linear(
            outputs, inputs, rank_bias, kernels, gathers=self._ranks if style in _BY_GATHERED_OUTPUTS else None
        )

    def adapt(self, name: str, layer: NativeLinear, shape: tuple[int, int], adapters: AdapterTable) -> None:
        """Let adapters add to a layer."""
        layer.adapt(adapters, name)
        adapters.divide(name, *self._parts(name, shape))

    def _parts(self, name: str, shape: tuple[int, int]) -> tuple[slice, slice]:
        """Return which outputs and inputs of a layer this rank has."""
        style = self._styles.get(pattern_of(name), "")
        outputs, inputs = slice(0, shape[0]), slice(0, shape[1])
        if style == _BY_INPUTS:
            inputs = self._ranks.slice_of(shape[1], f"the inputs of {name}")
        elif style not in _WHOLE:
            outputs = self._ranks.slice_of(shape[0], f"the outputs of {name}")
        return outputs, inputs

    def require_all_used(self) -> None:
        """Raise ``UnsupportedModelError`` if the plan names layers that are not there."""
        if self._unused:
            raise UnsupportedModelError(f"tp is not supported for layers {', '.join(sorted(self._unused))}")


@dataclass(frozen=True)
class Weight:
    """A linear layer's weight, in numbers or as a checkpoint's codes."""

    name: str
    numbers: torch.Tensor
    quantized: QuantizedWeights | None
    is_head: bool = False  # often it is the table of token embeddings too

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.numbers.shape[0], self.numbers.shape[1]

    def linear(
        self, outputs: slice, inputs: slice, bias: torch.Tensor | None, kernels: Kernels | None, **ranks: Any
    ) -> NativeLinear:
        """Return the layer of some outputs and inputs."""
        part = self.numbers[outputs, inputs]
        if self.quantized is None or self.name not in self.quantized.shapes:
            part = self.numbers if part.shape == self.shape else part.clone()  # itself, since it may be tied
            head = Matrix(part, bias, is_tiled=False) if self.is_head and kernels is not None else None
            return NativeLinear(part, bias, kernels, matrix=head, **ranks)
        if kernels is None and part.shape == self.shape and (made := gpu_linear_of(self.quantized, self.name, bias)):
            return made
        if kernels is None:
            values = self.quantized.numbers(self.name)[outputs, inputs].to(self.numbers.dtype).contiguous()
            return NativeLinear(values, bias, kernels, **ranks)
        matrix = self.quantized.matrix([(self.name, outputs)], inputs, bias)
        return NativeLinear(
            part, bias, kernels, matrix=matrix, numbers=partial(self._decoded, outputs, inputs), **ranks
        )

    def _decoded(self, outputs: slice, inputs: slice) -> torch.Tensor:
        assert self.quantized is not None
        return self.quantized.numbers(self.name)[outputs, inputs]
