"""Runner of a model class of this package or of the user."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.adapted_layers import SourceTrace, let_adapt, tracing
from lmdeploy.pytorch.adapters import AdapterTable
from lmdeploy.pytorch.configurations import AutoModelConfigBuilder
from lmdeploy.pytorch.cpu_kernels import Kernels
from lmdeploy.pytorch.models.hf_config import read_hf_config
from lmdeploy.pytorch.models.patch import CustomModuleMap, build_model_from_hf_config
from lmdeploy.pytorch.nn.attention import LayerCache
from lmdeploy.pytorch.nn.build_context import BuildContext
from lmdeploy.pytorch.nn.embedding import Embedding
from lmdeploy.pytorch.nn.linear import Linear
from lmdeploy.pytorch.nn.moe import ExpertWeights
from lmdeploy.pytorch.paged import StateShape
from lmdeploy.pytorch.ranks import Ranks
from lmdeploy.pytorch.recording import RecordingCache
from lmdeploy.pytorch.step_context import StepContext, get_step_ctx_manager
from lmdeploy.pytorch.text_part.image_inputs import let_see
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_model_weights

logger = logging.getLogger(__name__)

_TRIED_TOKENS = 8
_TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class PatchedModel:
    """A model on the layers of `lmdeploy.pytorch.nn`.

    Raises `UnsupportedModelError` if no class runs it, or the class fails at some tokens, and `CheckpointError` if
    checkpoint and class do not fit each other. ``shapes``, ``windows``: what each layer keeps of a token, and how far
    back it looks (0: all the way).
    """

    def __init__(
        self,
        checkpoint: Path,  # a Hugging Face directory
        dtype: str = "auto",  # type of the weights; ``auto``: the checkpoint's
        kernels: Kernels | None = None,  # the engine's operators for CPUs; None: plain PyTorch
        ranks: Ranks | None = None,  # this process among those that run the model
        custom_module_map: CustomModuleMap = None,  # classes of the user's, as `read_module_map` takes them
        device: torch.device | str = "cpu",  # where it runs
    ) -> None:
        config = read_hf_config(checkpoint)
        self.dtype = _type_of(config, dtype)  # type of the weights
        self._model: Any = build_model_from_hf_config(
            config,
            self.dtype,
            device,
            context=BuildContext(ranks or Ranks(), kernels),
            custom_module_map=custom_module_map,
        )
        if not hasattr(self._model, "get_logits") and not hasattr(self._model, "lm_head"):
            raise UnsupportedModelError(f"{type(self._model).__name__} needs a method get_logits, or a layer lm_head")
        with tracing(SourceTrace()) as trace:
            load_model_weights(self._model, checkpoint)
        let_see(self._model, checkpoint)
        self._device = torch.device(device)
        if self._device.type == "cpu":
            _upcast_embeddings(self._model, kernels)
            if kernels is not None:
                _tile_weights(self._model)
        self._model.to(self._device)  # buffers, which are made on the CPU
        self._logits_indices: torch.Tensor | None = None
        self._last_hidden: torch.Tensor | None = None
        if not hasattr(self._model, "get_logits"):
            self._model.lm_head.register_forward_pre_hook(self._select_rows)
        self._layers = AutoModelConfigBuilder.build(config).num_layers
        with _called_with(_TRIED_TOKENS, self._model) as layers:
            tried = self._try(checkpoint)
        self.shapes, self.windows = tried.shapes, tried.windows
        # None: classes in the engine's own style have no layer that keeps a state
        self.states: dict[int, StateShape] = {}
        self.adapters = AdapterTable(self._device)
        # As `lmdeploy.pytorch.step_runner.SteppingModel` has them
        self.layers: dict[str, tuple[int, int]] = {}
        try:
            self.layers = let_adapt(self._model, layers, trace.shapes, self.adapters)
        except ValueError as error:
            logger.warning("%s takes no LoRA adapters: %s", checkpoint, error)

    @torch.inference_mode()
    def forward(self, step: StepContext) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[logits, vocab]`` and, after the last norm, hidden states ``[logits, hidden]``; float32."""
        with get_step_ctx_manager().context(step):
            inputs = self._inputs(step)
            self._logits_indices = step.logits_indices
            output = self._model(**inputs)
            if hasattr(self._model, "get_logits"):
                self._last_hidden = output[0, step.logits_indices]
                logits = self._model.get_logits(self._last_hidden)
            else:
                logits = output[0]
        assert self._last_hidden is not None
        return logits.float(), self._last_hidden.float()

    def can_capture(self, step: StepContext) -> bool:
        """Return the class's ``support_cuda_graph``: a flag, or a function of the inputs."""
        supports = getattr(self._model, "support_cuda_graph", True)
        with get_step_ctx_manager().context(step):
            return bool(supports(**self._inputs(step)) if callable(supports) else supports)

    def _inputs(self, step: StepContext) -> dict[str, Any]:
        caches = [(LayerCache(step.kv_caches, layer),) * 2 for layer in range(self._layers)]
        inputs: dict[str, Any] = self._model.prepare_inputs_for_generation(past_key_values=caches, context=step)
        return inputs

    def _select_rows(self, _: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Let the head see only the tokens whose logits are asked for."""
        hidden = given[0][:, self._logits_indices]
        self._last_hidden = hidden[0]
        return (hidden, *given[1:])

    def _try(self, checkpoint: Path) -> RecordingCache:
        """Run some tokens, and return what the layers keep."""
        recording = RecordingCache()
        tokens = torch.arange(_TRIED_TOKENS, device=self._device)
        try:
            self.forward(recording.step(tokens, tokens[1::2], None))
        except Exception as error:
            raise UnsupportedModelError(
                f"{checkpoint}: {type(self._model).__name__} fails: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
        silent = sorted(set(range(self._layers)) - recording.shapes.keys())
        if silent:
            raise UnsupportedModelError(
                f"{checkpoint}: {type(self._model).__name__} attends in no way that the engine sees in layers "
                f"{', '.join(map(str, silent))} of {self._layers}"
            )
        return recording


@contextmanager
def _called_with(tokens: int, model: nn.Module) -> Iterator[list[Linear]]:
    """Yield what has, after the block, the linear layers that were always called with this many tokens in it."""
    counts: dict[Linear, set[int]] = {module: set() for module in model.modules() if isinstance(module, Linear)}

    def record(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(module, Linear)
        counts[module].add(given[0].shape[-2])

    hooks = [module.register_forward_pre_hook(record) for module in counts]
    found: list[Linear] = []
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
        found += [module for module, seen in counts.items() if seen == {tokens}]


def _type_of(config: Any, dtype: str) -> torch.dtype:
    if dtype != "auto":
        return _TYPES[dtype]
    found = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return _TYPES.get(str(found).removeprefix("torch."), torch.float32)


def _upcast_embeddings(model: nn.Module, kernels: Kernels | None) -> None:
    """Let embeddings of ``torch.nn`` give float32, which CPUs compute in."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Embedding:
            embedding = Embedding.of(module.weight, kernels)
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, embedding)


def _tile_weights(model: nn.Module) -> None:
    """Let the kernels have weights as tiles, but a head that is the embedding."""
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    for module in model.modules():
        if isinstance(module, (Linear, ExpertWeights)) and uses[id(module.weight)] == 1:
            module.tile()
