"""Mixture-of-experts layers of ``transformers`` on the C++ engine's kernels, quantized or not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.chosen_experts import sum_of_chosen
from lmdeploy.pytorch.cpu_kernels import Kernels, Matrix
from lmdeploy.pytorch.quantized_weights import QuantizedMatrix, QuantizedWeights
from lmdeploy.pytorch.ranks import Ranks

# A layer's number, an expert's, and which of its matrices: families call them w1, w3 and w2, or by what they do.
_EXPERT = re.compile(r".*\.(\d+)\.[^.]+\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)")
_PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
_MODULE = re.compile(r".*\.(\d+)\.[^.]+\.experts")
Names = Mapping[tuple[int, str], str]  # of an expert's coded matrices, by its number and ``gate``, ``up`` or ``down``


def is_experts(module: nn.Module) -> bool:
    """Return whether a module holds a layer's experts in tensors of three dimensions, or as DBRX does."""
    return hasattr(module, "is_transposed") or type(module).__name__ == "DbrxExperts"


def quantized_experts(quantized: QuantizedWeights | None) -> dict[int, Names]:
    """Return the experts that a checkpoint stores as codes, by the layer's number."""
    found: dict[int, dict[tuple[int, str], str]] = {}
    for name in () if quantized is None else quantized.shapes:
        if match := _EXPERT.fullmatch(name):
            layer, expert, part = match.groups()
            found.setdefault(int(layer), {})[int(expert), _PARTS[part]] = name
    return dict(found)


def numbers_among_quantized(tensors: Iterable[str], experts: Mapping[int, Names]) -> list[str]:
    """Return the errors of experts whose matrices of one kind are quantized in some and not in others."""
    problems = []
    for name in tensors:
        match = _EXPERT.fullmatch(name.removesuffix(".weight"))
        if match is None:
            continue
        part = _PARTS[match.group(3)]
        if any(of == part for _, of in experts.get(int(match.group(1)), ())):
            problems.append(f"tensor {name} is not stored as codes, as those of other experts of its layer are")
    return problems


def layer_of(name: str) -> int:
    """Return the number of the layer that experts of this name are of; -1 if it is of no experts."""
    match = _MODULE.fullmatch(name)
    return int(match.group(1)) if match else -1


def is_quantized(parameter: str, experts: Mapping[int, Names]) -> bool:
    """Return whether what a parameter of experts would hold is stored as codes."""
    module, _, name_in = parameter.rpartition(".")
    part = _PARTS.get(name_in, "up")  # gate and up are one parameter
    return any(of == part for _, of in experts.get(layer_of(module), ()))


class NativeExperts(nn.Module):
    """A layer's experts; ranks have a part of each.

    Raises `ValueError` if matrices are missing among the codes, or channels do not divide by the ranks. ``hf_module``:
    the layer of ``transformers``, whose activation is kept.
    """

    def __init__(
        self,
        hf_module: Any,
        kernels: Kernels,  # what computes
        ranks: Ranks,  # among whom the channels between an expert's two halves are divided; results are summed
        # Where the matrices are codes
        quantized: QuantizedWeights | None = None,
        names: Names | None = None,
    ) -> None:
        super().__init__()
        self._kernels, self._ranks = kernels, ranks
        count = int(hf_module.num_experts)
        self._first: list[Matrix | QuantizedMatrix] = []
        self._second: list[Matrix | QuantizedMatrix] = []
        has_gate = getattr(hf_module, "has_gate", True)
        parts = ("gate", "up") if has_gate else ("up",)
        for expert in range(count):
            numbers = _numbers_of(hf_module, expert, has_gate, ranks)
            first = _quantized_of(quantized, names or {}, expert, parts, ranks)
            second = _quantized_of(quantized, names or {}, expert, ("down",), ranks)
            self._first.append(first or numbers[0]())
            self._second.append(second or numbers[1]())
        is_dbrx = hasattr(hf_module, "mlp")
        self.act_fn: Any = hf_module.mlp.activation_fn if is_dbrx else getattr(hf_module, "act_fn", None)
        self._norm = hf_module.post_expert_norm if getattr(hf_module, "has_post_expert_norm", False) else None
        if self._norm is not None and ranks.count > 1:
            raise ValueError("tp is not supported with a norm after each expert")
        self._activate = hf_module._apply_gate if has_gate and hasattr(hf_module, "_apply_gate") else None
        for name in list(hf_module._parameters):  # the activation alone stays
            setattr(hf_module, name, None)
        self._has_gate = has_gate

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> Any:
        """Return float32 of the shape of ``hidden_states``, for ids and weights ``[tokens, chosen]``."""
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        total = sum_of_chosen(tokens.float(), top_k_weights, top_k_index, self._run)
        return self._ranks.sum(total).view_as(hidden_states)

    def _run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        first, second = self._first[expert], self._second[expert]
        x = self._kernels.linear(first.native, first.out_features, x)
        if self._activate is not None:
            x = self._activate(x)
        elif self._has_gate:
            gate, up = x.chunk(2, -1)
            x = self.act_fn(gate) * up
        else:
            x = self.act_fn(x)
        y = self._kernels.linear(second.native, second.out_features, x)
        return y if self._norm is None else self._norm(y)


def _quantized_of(
    quantized: QuantizedWeights | None, names: Names, expert: int, parts: tuple[str, ...], ranks: Ranks
) -> QuantizedMatrix | None:
    """Return this rank's part of an expert's matrix, or of two that are one; None if no expert has it as codes."""
    if quantized is None or not any(part in parts for _, part in names):
        return None
    for part in parts:
        if (expert, part) not in names:
            raise ValueError(f"the matrix {part} of expert {expert} is not stored as codes, as others of its layer are")
    layers = [names[expert, part] for part in parts]
    outputs, inputs = quantized.shapes[layers[0]]
    if parts == ("down",):
        return quantized.matrix([(layers[0], slice(0, outputs))], ranks.slice_of(inputs, "the channels of an expert"))
    cut = ranks.slice_of(outputs, "the channels of an expert")
    return quantized.matrix([(layer, cut) for layer in layers])


def _numbers_of(
    hf_module: Any, expert: int, has_gate: bool, ranks: Ranks
) -> tuple[Callable[[], Matrix], Callable[[], Matrix]]:
    """Return a function that makes this rank's part of an expert's two matrices from tensors."""
    bias, last_bias = None, None
    if hasattr(hf_module, "mlp"):  # DBRX
        size = hf_module.ffn_hidden_size
        matrices = (hf_module.mlp.w1, hf_module.mlp.v1, hf_module.mlp.w2)
        gate, up, down = (matrix[expert * size : (expert + 1) * size] for matrix in matrices)
        first, second = torch.cat([gate, up]), down.t()
    else:
        first, second = (hf_module.gate_up_proj if has_gate else hf_module.up_proj)[expert], hf_module.down_proj[expert]
        if hf_module.is_transposed:
            first, second = first.t(), second.t()
        if hf_module.has_bias:
            bias = (hf_module.gate_up_proj_bias if has_gate else hf_module.up_proj_bias)[expert]
            last_bias = hf_module.down_proj_bias[expert] if ranks.rank == 0 else None  # summed with the others
    if ranks.count > 1:
        part = ranks.slice_of(second.shape[1], "the channels of an expert")
        rows = torch.arange(len(first))
        if has_gate:  # two halves, or neighbours
            rows = rows.view(2, -1)[:, part] if getattr(hf_module, "is_concatenated", True) else rows.view(-1, 2)[part]
        else:
            rows = rows[part]
        first, second = first[rows.flatten()], second[:, part]
        bias = None if bias is None else bias[rows.flatten()]
    return partial(Matrix, first, bias), partial(Matrix, second, last_bias)


def fill_with_numbers(hf_module: Any, quantized: QuantizedWeights, names: Names) -> None:
    """Give a layer's tensors the numbers that its experts' codes stand for.

    Raises `ValueError` if codes are missing, or the tensors are laid out otherwise.
    """
    has_gate = getattr(hf_module, "has_gate", True)
    if getattr(hf_module, "is_transposed", True) or not hf_module.is_concatenated:
        raise ValueError("experts of this layout are not read from codes")
    joined = (("gate", "up") if has_gate else ("up",), hf_module.gate_up_proj if has_gate else hf_module.up_proj)
    for parts, tensor in (joined, (("down",), hf_module.down_proj)):
        if not any(part in parts for _, part in names):
            continue
        for expert in range(hf_module.num_experts):
            try:
                numbers = torch.cat([quantized.numbers(names[expert, part]) for part in parts])
            except KeyError as error:
                raise ValueError(f"the matrix {error} of an expert is not stored as codes, as others are") from error
            tensor.data[expert] = numbers.to(tensor)
