"""Linear layers, each rank with its part: by outputs (colwise), or by inputs with a sum over the ranks (rowwise)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.pytorch.adapted_layers import AdaptedPart, current_trace
from lmdeploy.pytorch.adapters import AdapterTable
from lmdeploy.pytorch.cpu_kernels import Matrix
from lmdeploy.pytorch.nn.build_context import build_context
from lmdeploy.pytorch.quantized_weights import QuantizedMatrix, QuantizedWeights, is_index, require_numbers
from lmdeploy.pytorch.ranks import Ranks


class Linear(nn.Module):
    """``y = x W^T + b``, or this rank's part of it.

    Parameters
    ----------
    in_features, out_features
        Of the whole layer.
    bias
        Whether there is one.
    dtype, device
        Of the weight.
    is_colwise
        Whether outputs are divided, or inputs.
    is_tp
        Whether ranks have a part each, or all have the whole.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        is_colwise: bool = True,
        is_tp: bool = False,
    ) -> None:
        super().__init__()
        context = build_context()
        self._kernels = context.kernels
        self._ranks = context.ranks if is_tp else Ranks()
        self._is_colwise = is_colwise
        if is_colwise:
            out_features = _part_of(out_features, self._ranks, "the outputs")
        else:
            in_features = _part_of(in_features, self._ranks, "the inputs")
        self.in_features, self.out_features = in_features, out_features
        self.weight = _parameter((out_features, in_features), dtype, device)
        self.weight.weight_loader = self.weight_loader
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = _parameter((out_features,), dtype, device)
            self.bias.weight_loader = self.weight_loader
        self._matrix: Matrix | QuantizedMatrix | None = None
        self._quantized_rows: list[tuple[slice, torch.Tensor]] = []
        self._adapters: AdapterTable | None = None
        self.adapted: list[AdaptedPart] = []

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        """Copy this rank's part of a tensor of the checkpoint."""
        if self._is_colwise:
            loaded_weight = loaded_weight[self._ranks.slice_of(loaded_weight.shape[0], "the outputs of a layer")]
        self._load_outputs(param, slice(0, self.out_features), loaded_weight)

    def _load_outputs(self, param: nn.Parameter, outputs: slice, loaded: torch.Tensor) -> None:
        """Copy what some outputs of this rank have of all inputs, or learn from numbers which outputs they are."""
        trace = current_trace()
        if param is not self.weight:
            copy_into(param.data[outputs], loaded)
            return
        if trace is not None and trace.adapters is not None:
            self._adapters = trace.adapters
            self.adapted.append(trace.take(outputs, loaded, self._rank_inputs(self.in_features * self._input_ranks)))
            return
        if trace is not None:
            trace.see()
        if is_index(loaded):
            self._quantized_rows.append((outputs, loaded[:, 0].clone()))
            return
        copy_into(param.data[outputs], loaded[:, self._rank_inputs(loaded.shape[1])])

    def load_quantized(self, quantized: QuantizedWeights) -> None:
        """Use the codes whose indices were loaded in place of the weight.

        Raises
        ------
        ValueError
            If not all outputs are codes.
        """
        if not self._quantized_rows:
            return
        self._quantized_rows.sort(key=lambda entry: entry[0].start)
        counted = sum(outputs.stop - outputs.start for outputs, _ in self._quantized_rows)
        if counted != self.out_features:
            raise ValueError(f"{counted} of a layer's {self.out_features} outputs are codes: all must be, or none")
        rows = [row for _, indices in self._quantized_rows for row in quantized.rows_of(indices)]
        inputs = self._rank_inputs(self.in_features * self._input_ranks)
        dtype, device = self.weight.dtype, self.weight.device
        if self._kernels is not None and device.type == "cpu":
            self._matrix = quantized.matrix(rows, inputs, self._rank_bias())
            self.weight.data = torch.empty(0, dtype=dtype)
        else:
            parts = [quantized.numbers(layer)[outputs, inputs] for layer, outputs in rows]
            self.weight.data = torch.cat(parts).to(device, dtype)

    def tile(self) -> None:
        """Let the kernels have the weight as tiles, which nothing else reads."""
        if self._matrix is None:
            self._matrix = Matrix(self.weight, self._rank_bias())
            self.weight.data = torch.empty(0, dtype=self.weight.dtype)

    @property
    def _input_ranks(self) -> int:
        """Over how many ranks the inputs are divided."""
        return 1 if self._is_colwise else self._ranks.count

    def _rank_inputs(self, count: int) -> slice:
        return slice(0, count) if self._is_colwise else self._ranks.slice_of(count, "the inputs of a layer")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., outputs]`` for ``[..., inputs]``."""
        bias = self._rank_bias()
        if self._kernels is not None and x.device.type == "cpu":
            if self._matrix is None:
                self._matrix = Matrix(self.weight, bias, is_tiled=False)
            y = self._kernels.linear(self._matrix.native, self.out_features, x)
        else:
            y = functional.linear(x, self.weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
        if self._adapters is not None and self._adapters.is_used:
            for part in self.adapted:
                self._adapters.add(part.name, x, y[..., part.outputs])
        return y if self._is_colwise else self._ranks.sum(y)

    def _rank_bias(self) -> nn.Parameter | None:
        """Return the bias, but None where ranks sum their products and another adds it."""
        return self.bias if self._is_colwise or self._ranks.rank == 0 else None


class MergedColwiseLinear(Linear):
    """Several layers with the same inputs as one; each rank has its part of every one of them.

    Parameters
    ----------
    all_out_features
        Outputs of each of the layers.
    out_names
        What the layers are called as a ``shard_id``; by default their number.
    """

    def __init__(
        self,
        in_features: int,
        all_out_features: Sequence[int],
        bias: bool,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        is_tp: bool = True,
        out_names: Sequence[Any] | None = None,
    ) -> None:
        self.all_out_features = list(all_out_features)
        self._names = list(out_names) if out_names is not None else list(range(len(self.all_out_features)))
        super().__init__(in_features, sum(all_out_features), bias, dtype, device, is_tp=is_tp)
        self._parts = [_part_of(size, self._ranks, "the outputs") for size in all_out_features]

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: Any = None) -> None:
        """Copy this rank's part of one of the layers, or of all, one after the other."""
        if shard_id is None:
            for name, part in zip(self._names, self.weight_spliter(loaded_weight), strict=True):
                self.weight_loader(param, part, name)
            return
        number = self._names.index(shard_id)
        shard = self._ranks.slice_of(loaded_weight.shape[0], f"the outputs {shard_id}")
        begin = sum(self._parts[:number])
        self._load_outputs(param, slice(begin, begin + self._parts[number]), loaded_weight[shard])

    def weight_spliter(self, loaded_weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the layers of a tensor that holds all of them."""
        return tuple(loaded_weight.split(self.all_out_features))


class QKVLinear(Linear):
    """The projections of queries, keys and values as one; ranks have whole heads.

    Where there are fewer key heads than ranks, several ranks have the same one.
    """

    def __init__(
        self,
        in_features: int,
        num_q_heads: int,
        num_kv_heads: int,
        head_size: int,
        head_size_v: int | None = None,
        bias: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        is_tp: bool = True,
    ) -> None:
        ranks = build_context().ranks if is_tp else Ranks()
        self._all_kv_heads, self._all_q_heads = num_kv_heads, num_q_heads
        self._q_heads = _part_of(num_q_heads, ranks, "the query heads")
        self._kv_copies = max(1, ranks.count // num_kv_heads)
        self._kv_heads = _part_of(num_kv_heads * self._kv_copies, ranks, "the key heads")
        self._head_size, self._head_size_v = head_size, head_size_v or head_size
        self._sizes = [self._q_heads * head_size, self._kv_heads * head_size, self._kv_heads * self._head_size_v]
        super().__init__(in_features, sum(self._sizes) * ranks.count, bias, dtype, device, is_tp=is_tp)

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor, shard_id: str | None = None) -> None:
        """Copy this rank's heads of ``q``, ``k`` or ``v``, or of all three, one after the other."""
        if shard_id is None:
            for name, part in zip("qkv", self.weight_spliter(loaded_weight), strict=True):
                self.weight_loader(param, part, name)
            return
        size = self._head_size_v if shard_id == "v" else self._head_size
        heads = loaded_weight.unflatten(0, (-1, size))
        if shard_id == "q":
            shard = slice(self._ranks.rank * self._q_heads, (self._ranks.rank + 1) * self._q_heads)
        else:
            first = self._ranks.rank * self._kv_heads // self._kv_copies
            shard = slice(first, first + self._kv_heads)
        number = "qkv".index(shard_id)
        begin = sum(self._sizes[:number])
        self._load_outputs(param, slice(begin, begin + self._sizes[number]), heads[shard].flatten(0, 1))

    def weight_spliter(self, loaded_weight: torch.Tensor, layout: str = "default") -> tuple[torch.Tensor, ...]:
        """Return q, k and v of a tensor that holds all three.

        Parameters
        ----------
        loaded_weight
            ``[outputs, ...]``.
        layout
            ``default``: one after the other. ``hgd``: a key head after the other, each with its queries, its key and
            its value.
        """
        q, kv, dim, dim_v = self._all_q_heads, self._all_kv_heads, self._head_size, self._head_size_v
        if layout == "default":
            return tuple(loaded_weight.split([q * dim, kv * dim, kv * dim_v]))
        if layout != "hgd":
            raise ValueError(f"layout must be 'default' or 'hgd', got {layout!r}")
        parts = loaded_weight.unflatten(0, (kv, -1)).split([q // kv * dim, dim, dim_v], dim=1)
        return tuple(part.flatten(0, 1) for part in parts)

    def split_qkv(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values ``[..., heads, head size]`` of this layer's output."""
        if self._head_size == self._head_size_v:  # all heads are alike: one view, then parts of it
            heads = x.view(*x.shape[:-1], -1, self._head_size)
            q, kv = self._q_heads, self._kv_heads
            return heads.narrow(-2, 0, q), heads.narrow(-2, q, kv), heads.narrow(-2, q + kv, kv)
        q, k, v = x.split(self._sizes, dim=-1)
        sizes = (self._head_size, self._head_size, self._head_size_v)
        q, k, v = (part.unflatten(-1, (-1, size)) for part, size in zip((q, k, v), sizes, strict=True))
        return q, k, v


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor of the checkpoint to where it belongs.

    Raises
    ------
    ValueError
        If their shapes differ.
    """
    require_numbers(source)
    if target.shape != source.shape:
        raise ValueError(f"the checkpoint has {list(source.shape)} where the model has {list(target.shape)}")
    target.copy_(source)


def build_linear(
    in_features: int,
    out_features: int,
    bias: bool,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    colwise: bool = True,
    is_tp: bool = False,
    quant_config: Any = None,
) -> Linear:
    """Build a linear layer, divided by outputs where ``colwise``, else by inputs, if ``is_tp``.

    ``quant_config`` is not looked at: whether weights are codes is seen when they are loaded.
    """
    return Linear(in_features, out_features, bias, dtype, device, is_colwise=colwise, is_tp=is_tp)


def build_colwise_linear(
    in_features: int,
    out_features: int,
    bias: bool,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    is_tp: bool = False,
    quant_config: Any = None,
) -> Linear:
    """Build a linear layer whose outputs are divided over the ranks if ``is_tp``."""
    return build_linear(in_features, out_features, bias, dtype, device, True, is_tp, quant_config)


def build_rowwise_linear(
    in_features: int,
    out_features: int,
    bias: bool,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    is_tp: bool = False,
    quant_config: Any = None,
) -> Linear:
    """Build a linear layer whose inputs are divided over the ranks if ``is_tp``; results are summed."""
    return build_linear(in_features, out_features, bias, dtype, device, False, is_tp, quant_config)


def build_merged_colwise_linear(
    in_features: int,
    all_out_features: Sequence[int],
    bias: bool,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    quant_config: Any = None,
    is_tp: bool = True,
    out_names: Sequence[Any] | None = None,
) -> MergedColwiseLinear:
    """Build several layers with the same inputs as one; its shards are loaded by number, or by ``out_names``."""
    return MergedColwiseLinear(in_features, all_out_features, bias, dtype, device, is_tp=is_tp, out_names=out_names)


def build_qkv_proj(
    in_features: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_size: int,
    head_size_v: int | None = None,
    bias: bool = False,
    quant_config: Any = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    is_tp: bool = True,
) -> QKVLinear:
    """Build the projections of queries, keys and values as one; its shards are ``q``, ``k`` and ``v``."""
    return QKVLinear(in_features, num_q_heads, num_kv_heads, head_size, head_size_v, bias, dtype, device, is_tp=is_tp)


def build_gateup_linear(
    in_features: int,
    all_out_features: Sequence[int],
    bias: bool,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    quant_config: Any = None,
    is_tp: bool = True,
) -> MergedColwiseLinear:
    """Build the first half of a gated MLP; its shards are 0, the gate, and 1."""
    return build_merged_colwise_linear(in_features, all_out_features, bias, dtype, device, quant_config, is_tp)


# The second half of an MLP, and of attention.
build_down_linear = build_rowwise_linear
build_o_proj = build_rowwise_linear


def _part_of(size: int, ranks: Ranks, what: str) -> int:
    part = ranks.slice_of(size, f"{what} of a layer")
    return int(part.stop - part.start)


def _parameter(shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device | str | None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
