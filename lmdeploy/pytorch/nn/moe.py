"""Mixtures of experts: the router's choice, and the experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.pytorch.chosen_experts import sum_of_chosen
from lmdeploy.pytorch.cpu_kernels import Matrix
from lmdeploy.pytorch.nn import device as on
from lmdeploy.pytorch.nn.activation import SiluAndMul
from lmdeploy.pytorch.nn.build_context import build_context
from lmdeploy.pytorch.nn.linear import copy_into
from lmdeploy.pytorch.quantized_weights import QuantizedMatrix, QuantizedWeights, is_index


class SoftmaxTopK(nn.Module):
    """The largest probabilities of a router.

    Parameters
    ----------
    top_k
        How many.
    dim
        Of the experts.
    """

    def __init__(self, top_k: int, dim: int = -1) -> None:
        super().__init__()
        self._top_k, self._dim = top_k, dim

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 probabilities and the experts' numbers, ``[rows, top_k]``, for logits ``[rows, experts]``."""
        weights, ids = x.float().softmax(self._dim).topk(self._top_k, self._dim)
        return weights, ids


class ExpertWeights(nn.Module):
    """A matrix an expert, ``[experts, outputs, inputs]``; each rank has its part of every expert.

    Parameters
    ----------
    shards
        What the layers that are consecutive are called as a ``shard_id``.
    is_colwise
        Whether ranks divide the outputs (of each shard), or the inputs.
    """

    def __init__(
        self,
        experts: int,
        outputs: int,
        inputs: int,
        shards: tuple[str, ...],
        is_colwise: bool,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self._ranks, self._kernels = build_context().ranks, build_context().kernels
        self._shards, self._is_colwise = shards, is_colwise
        self._matrices: dict[int, Matrix | QuantizedMatrix] = {}
        self._quantized_rows: dict[
            tuple[int, int], torch.Tensor
        ] = {}  # where the outputs of an expert's shard are stored
        self._inputs = slice(0, inputs)
        part = self._ranks.slice_of(outputs if is_colwise else inputs, "the channels of an expert")
        size = part.stop - part.start
        if not is_colwise:
            self._inputs = part
        shape = (experts, size * len(shards), inputs) if is_colwise else (experts, outputs, size)
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
        self.weight.weight_loader = self.weight_loader

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor, expert_id: int, shard_id: str) -> None:
        """Copy this rank's part of a layer of an expert."""
        number, axis = self._shards.index(shard_id), 0 if self._is_colwise else 1
        shard = self._ranks.slice_of(loaded_weight.shape[axis], "the channels of an expert")
        if is_index(loaded_weight):
            self._quantized_rows[expert_id, number] = (loaded_weight[shard] if self._is_colwise else loaded_weight)[
                :, 0
            ].clone()
            return
        target = param.data[expert_id].chunk(len(self._shards))[number]
        copy_into(target, loaded_weight[shard] if self._is_colwise else loaded_weight[:, shard])

    def load_quantized(self, quantized: QuantizedWeights) -> None:
        """Use the codes whose places were loaded, in the place of the weights.

        Raises
        ------
        ValueError
            If not all matrices of all experts are codes.
        """
        if not self._quantized_rows:
            return
        experts = len(self.weight)
        if len(self._quantized_rows) != experts * len(self._shards):
            raise ValueError(
                f"{len(self._quantized_rows)} of {experts * len(self._shards)} matrices of experts are codes: all "
                "must be, or none"
            )
        takes_quantized = self._kernels is not None and self.weight.device.type == "cpu"
        for expert in range(experts):
            rows = [
                row
                for shard in range(len(self._shards))
                for row in quantized.rows_of(self._quantized_rows[expert, shard])
            ]
            if takes_quantized:
                self._matrices[expert] = quantized.matrix(rows, self._inputs)
            else:
                parts = [quantized.numbers(layer)[outputs, self._inputs] for layer, outputs in rows]
                self.weight.data[expert] = torch.cat(parts).to(self.weight)
        if takes_quantized:
            self.weight.data = torch.empty(0, dtype=self.weight.dtype)

    def tile(self) -> None:
        """Let the kernels have the weights as tiles, which nothing else reads."""
        if not self._matrices:
            self._matrices = dict(enumerate(map(Matrix, self.weight)))
            self.weight.data = torch.empty(0, dtype=self.weight.dtype)

    def multiply(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Return ``[rows, outputs]`` of an expert for ``[rows, inputs]``."""
        if self._kernels is None or x.device.type != "cpu":
            return functional.linear(x, self.weight[expert].to(x.dtype))
        if expert not in self._matrices:
            self._matrices[expert] = Matrix(self.weight[expert])
        matrix = self._matrices[expert]
        return self._kernels.linear(matrix.native, matrix.out_features, x)


class FusedMoE(nn.Module):
    """The experts of a layer; submodules ``gate_up`` (shards ``gate`` and ``up``) and ``down``."""

    def __init__(
        self,
        hidden_dim: int,
        ffn_dim: int,
        num_experts: int,
        top_k: int,
        renormalize: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        all_reduce: bool = True,
    ) -> None:
        super().__init__()
        self._ranks = build_context().ranks
        self.top_k, self._renormalize, self._all_reduce = top_k, renormalize, all_reduce
        self.gate_up = ExpertWeights(num_experts, ffn_dim, hidden_dim, ("gate", "up"), True, dtype, device)
        self.down = ExpertWeights(num_experts, hidden_dim, ffn_dim, ("down",), False, dtype, device)
        self._act = SiluAndMul()

    def forward(self, hidden_states: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[rows, hidden]``: each row's sum over its experts, times their weights."""
        if self._renormalize:
            topk_weights = topk_weights / topk_weights.sum(-1, keepdim=True)
        if on.runs_kernels(hidden_states):
            from lmdeploy.pytorch.kernels.fused_moe import fused_moe

            out = fused_moe(hidden_states, self.gate_up.weight, self.down.weight, topk_weights, topk_ids)
        else:
            out = sum_of_chosen(hidden_states, topk_weights, topk_ids, self._run)
        return self._ranks.sum(out) if self._all_reduce else out

    def _run(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        return self.down.multiply(expert, self._act(self.gate_up.multiply(expert, x)))


def build_fused_moe(
    hidden_dim: int,
    ffn_dim: int,
    num_experts: int,
    top_k: int,
    renormalize: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    quant_config: Any = None,
    all_reduce: bool = True,
) -> FusedMoE:
    """Build the experts of a layer.

    Parameters
    ----------
    hidden_dim, ffn_dim
        Channels of the residual stream, and between an expert's halves.
    num_experts, top_k
        How many there are, and how many a row chooses.
    renormalize
        Whether a row's weights are made to sum to 1.
    all_reduce
        Whether the ranks' results are summed here.
    quant_config
        Not looked at: whether weights are codes is seen when they are loaded.
    """
    return FusedMoE(hidden_dim, ffn_dim, num_experts, top_k, renormalize, dtype, device, all_reduce)
