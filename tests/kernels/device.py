"""Devices that operators are tested on, and their operators on torch tensors.

A device is the CPU with one instruction set, CUDA emulated on the CPU, or a GPU where the build has CUDA and finds one.
All run the operators of ``backend_cpp/device/operators.h``; ``backend_cpp/testing/bindings`` says what the compiled
modules take.
"""

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmdeploy.turbomind.spec.parts import ACTIVATIONS, GROUP_SCORES, ROUTER_SCORES
from tests.kernels.arguments import AttentionRule, HeadSizes, Router, Span

# Instruction sets that multiply bfloat16, and those of them that do it on tiles.
BF16_TILES = ("amx", "amx_emulated")
BF16_PRODUCTS = ("avx512bf16", *BF16_TILES)
# Kinds of Pointwise.
POINTWISE = ("scale", "scale_rows", "cap", "clamp", "sigmoid")

# A compiled module; its functions take and return arrays.
NativeModule = Any
# Cosines and sines [rows, pairs], what queries are multiplied by [rows], and whether pairs are neighbours.
Rotation = tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]

MODULES = {"emulated": "tests.kernels._cuda_emulated", "gpu": "tests.kernels._cuda_device"}
NOT_BUILT = (
    "the operators are not built for the tests, neither with CUDA nor with its emulation: run `make build-tests`"
)


def load_module(name: str) -> NativeModule:
    """Return the module of ``emulated`` or ``gpu``; ``ImportError`` where it is not built."""
    return importlib.import_module(MODULES[name])


def built_modules() -> list[str]:
    """Return the names of the modules that are here, whether or not there is a device."""
    return [name for name, module in MODULES.items() if importlib.util.find_spec(module) is not None]


def cuda_devices() -> list[str]:
    """Return those of ``emulated`` and ``gpu`` that tests can run on here."""
    return [name for name in built_modules() if load_module(name).device_count() > 0]


@cache
def host_module() -> NativeModule:
    """Return a module for what runs on the CPU; ``ImportError`` where none is built."""
    names = built_modules()
    if not names:
        raise ImportError(NOT_BUILT)
    return load_module(names[0])


def read_tensor(directory: Path, name: str, shape: list[int]) -> torch.Tensor:
    """Return a tensor of an engine directory as the engine reads it, float32."""
    return torch.from_numpy(host_module().read_tensor(str(directory), name, shape))


def multiply_codes(directory: Path, name: str, shape: list[int], x: torch.Tensor) -> torch.Tensor | None:
    """Return ``x W^T`` for a matrix stored as codes, as the CPU multiplies them; None where it takes the numbers."""
    y = host_module().multiply_codes(str(directory), name, shape, x.numpy())
    return None if y is None else torch.from_numpy(y)


def _array(x: torch.Tensor | None) -> Any:
    return None if x is None else x.contiguous().numpy()


def _unwritten(*shape: int) -> np.ndarray[Any, Any]:
    return np.full(shape, np.nan, np.float32)


class Device:
    """One device's operators. Matrices are row-major and float32 where nothing else is said.

    Attributes
    ----------
    name
        ``cpu``, ``emulated`` or ``gpu``.
    isa
        The instruction set of the CPU; empty on CUDA.
    native
        The compiled module's object.
    """

    def __init__(self, name: str, isa: str = "") -> None:
        self.name, self.isa = name, isa
        self.module = host_module() if name == "cpu" else load_module(name)
        self.native = self.module.Device("cpu" if name == "cpu" else "cuda")

    @property
    def is_cuda(self) -> bool:
        """Whether results depend on the shape of a launch, and arithmetic is that of ``kernels/cuda``."""
        return self.name != "cpu"

    def linear(self, weight: Any, x: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``x`` ``[rows, in]`` times the weight, which is a :class:`~tests.kernels.weights.Weight`.

        ``before`` ``[rows, out]`` is what the result is added to.
        """
        y = _unwritten(x.shape[0], weight.exact.shape[0]) if before is None else _array(before)
        return torch.from_numpy(self.native.linear(weight.native, _array(x), y, before is not None))

    def linear_of_norms(
        self, weight: Any, x: torch.Tensor, scale: torch.Tensor, eps: float, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the norm of ``x``'s rows with ``scale`` ``[in]`` times the weight: RMS, or with ``bias`` layer."""
        y = _unwritten(x.shape[0], weight.exact.shape[0])
        norm = (_array(scale), _array(bias), eps)
        return torch.from_numpy(self.native.linear_of_norms(weight.native, _array(x), *norm, y))

    def linear_of_gates(self, weight: Any, x: torch.Tensor, activation: str) -> torch.Tensor:
        """Return the gated activation of ``x`` ``[rows, 2 in]``, times the weight."""
        y = _unwritten(x.shape[0], weight.exact.shape[0])
        return torch.from_numpy(self.native.linear_of_gates(weight.native, _array(x), ACTIVATIONS.index(activation), y))

    def gated_mlp(
        self, gate_up: Any, activation: str, down: Any, x: torch.Tensor, before: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return ``down`` of the gated activation of ``gate_up`` of ``x`` ``[rows, in]``, added to ``before``."""
        y = _unwritten(x.shape[0], down.exact.shape[0]) if before is None else _array(before)
        arguments = (gate_up.native, ACTIVATIONS.index(activation), down.native, _array(x), y, before is not None)
        return torch.from_numpy(self.native.gated_mlp(*arguments))

    def head_linear(self, weight: Any, x: torch.Tensor, gap: int = 0) -> torch.Tensor:
        """Return each head's own product: ``x`` ``[rows, heads, in + gap]``, of which ``gap`` are no inputs."""
        rows, heads = x.shape[:2]
        y = _unwritten(rows, heads, weight.exact.shape[0] // heads)
        return torch.from_numpy(self.native.head_linear(weight.native, _array(x), gap, y))

    def lora(
        self, x: torch.Tensor, y: torch.Tensor, adapters: Sequence[Any], adapter_of_row: Sequence[int]
    ) -> torch.Tensor:
        """Return ``y`` ``[rows, out]`` with what the adapter of each row of ``x`` ``[rows, in]`` adds; -1: none.

        ``adapters`` are :class:`~tests.kernels.adapters.Adapter`, all of one type.
        """
        native = [adapter.native for adapter in adapters]
        return torch.from_numpy(
            self.native.lora(_array(x), _array(y), native, list(adapter_of_row), adapters[0].native_format)
        )

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return RMSNorm of the rows of ``x`` ``[rows, size]``, times ``weight`` ``[size]``."""
        return torch.from_numpy(self.native.norm(_array(x), False, _array(weight), None, eps))

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        """Return LayerNorm of the rows of ``x`` ``[rows, size]``, times ``weight`` plus ``bias`` ``[size]``."""
        return torch.from_numpy(self.native.norm(_array(x), True, _array(weight), _array(bias), eps))

    def norm_heads(
        self, x: torch.Tensor, first: int, heads: int, weight: torch.Tensor, eps: float, *, is_layer_norm: bool = False
    ) -> torch.Tensor:
        """Return ``x`` with each of the heads that begin in column ``first`` normed by ``weight`` ``[head_dim]``."""
        arguments = (first, heads, weight.shape[0], is_layer_norm, _array(weight), eps)
        return torch.from_numpy(self.native.norm_heads(_array(x), *arguments))

    def activate(self, x: torch.Tensor, activation: str, *, is_gated: bool) -> torch.Tensor:
        """Return ``act(x)``, or, gated, ``act(gate) * up``, where gate is the first half of each row."""
        y = _unwritten(x.shape[0], x.shape[1] // 2 if is_gated else x.shape[1])
        return torch.from_numpy(self.native.activate(_array(x), ACTIVATIONS.index(activation), is_gated, y))

    def xielu(self, x: torch.Tensor, positive: float, negative: float, linear: float) -> torch.Tensor:
        """Return xIELU of every element of ``x`` ``[rows, size]``, with these factors."""
        return torch.from_numpy(self.native.xielu(_array(x), positive, negative, linear))

    def mix_streams(self, x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Return each stream of ``x`` ``[count, rows, size]`` plus all times ``factors`` ``[rows, count, count]``."""
        return torch.from_numpy(self.native.mix_streams(_array(x), _array(factors)))

    def correct_streams(self, x: torch.Tensor, active: int, factors: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """Return the streams ``[count, rows, size]``, corrected by ``factors`` ``[rows, count]`` and ``made``."""
        return torch.from_numpy(self.native.correct_streams(_array(x), active, _array(factors), _array(made)))

    def match_rms(self, like: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return rows ``[rows, size]`` with the root mean square of those of ``like``."""
        return torch.from_numpy(self.native.match_rms(_array(like), _array(x)))

    def cut_rows(self, x: torch.Tensor, factor: float, size: int) -> torch.Tensor:
        """Return rows ``[rows, width]`` whose first ``size`` numbers are cut."""
        return torch.from_numpy(self.native.cut_rows(_array(x), factor, size))

    def apply(
        self, kind: str, x: torch.Tensor, *, scale: float = 1, limit: float = 0,
        factors: torch.Tensor | None = None, head_dim: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return ``x`` ``[rows, ..., width]``, of each width the first ``head_dim`` as a ``Pointwise`` changes them."""
        heads = _array(x.reshape(len(x), -1, x.shape[-1]))
        own = POINTWISE.index(kind), scale, limit, _array(factors)
        return torch.from_numpy(self.native.apply(heads, head_dim or x.shape[-1], *own)).view(x.shape)

    def add_scaled(self, scale: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return ``y + scale x``."""
        return torch.from_numpy(self.native.add_scaled(scale, _array(x), _array(y)))

    def rope_table(
        self,
        positions: torch.Tensor,
        sets: torch.Tensor | None,
        frequencies: torch.Tensor,
        scale: float,
        axis_of_pair: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines ``[rows, pairs]`` of position times frequency, times ``scale``.

        ``positions`` are ``[rows]``, or ``[rows, axes]`` of which ``axis_of_pair`` names one for each pair.
        """
        like = _unwritten(positions.shape[0], frequencies.shape[1])
        arrays = (_array(positions.view(len(positions), -1)), _array(sets), _array(frequencies))
        tables = self.native.rope_table(*arrays, scale, _array(axis_of_pair), like)
        return torch.from_numpy(tables[0]), torch.from_numpy(tables[1])

    def rope(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        factors: torch.Tensor | None = None,
        *,
        is_interleaved: bool,
    ) -> torch.Tensor:
        """Return the heads ``x`` ``[rows, heads, head_dim]`` rotated, times ``factors`` ``[rows]``."""
        arguments = (_array(x), _array(cos), _array(sin), is_interleaved, _array(factors))
        return torch.from_numpy(self.native.rope(*arguments))

    def embed(self, table: Any, tokens: torch.Tensor, scale: float) -> torch.Tensor:
        """Return rows of the table, a :class:`~tests.kernels.weights.Weight`, times ``scale``."""
        y = _unwritten(tokens.shape[0], table.exact.shape[1])
        return torch.from_numpy(self.native.embed(table.native, _array(tokens), scale, y))

    def gather_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``x`` that ``indices``, int32, name."""
        y = _unwritten(indices.shape[0], x.shape[1])
        return torch.from_numpy(self.native.gather_rows(_array(x), _array(indices), y))

    def scatter_rows(
        self, x: torch.Tensor, indices: torch.Tensor, y: torch.Tensor, *, accumulate: bool = False
    ) -> torch.Tensor:
        """Return ``y`` with the rows that ``indices``, int32, name replaced by those of ``x``, or these added."""
        return torch.from_numpy(self.native.scatter_rows(_array(x), _array(indices), _array(y), accumulate))

    def copy_heads(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return ``y`` ``[rows, heads, width]`` with the heads of ``x``, not wider, at the front of its own."""
        return torch.from_numpy(self.native.copy_heads(_array(x), _array(y)))

    def route(self, router: Router, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return experts (int32) and weights, both ``[rows, top_k]``, of ``logits`` ``[rows, experts]``."""
        shape = (logits.shape[0], router.top_k)
        experts, weights = self.native.route(
            _array(logits), ROUTER_SCORES.index(router.score), router.mixer_jitter, router.num_groups,
            router.top_groups, GROUP_SCORES.index(router.group_score), _array(router.choice_bias), router.normalize,
            router.scale, _array(router.expert_scales), np.full(shape, -1, np.int32), _unwritten(*shape),
        )  # fmt: skip
        return torch.from_numpy(experts), torch.from_numpy(weights)

    def begin_step(self, rows: int) -> None:
        """Have a step of this many rows: those after them in what :meth:`route` gets are there to fill it up."""
        self.native.begin_step(rows)

    def add_experts(
        self,
        gate_up: list[Any],
        down: list[Any],
        activation: str,
        x: torch.Tensor,
        routed: tuple[torch.Tensor, torch.Tensor],
        before: torch.Tensor,
    ) -> torch.Tensor:
        """Return ``before`` ``[rows, hidden]`` plus the weighted sum of what each row's experts make of it.

        ``routed`` is what :meth:`route` returned; each expert has a weight ``gate_up`` and one ``down``.
        """
        return torch.from_numpy(
            self.native.add_experts(
                [weight.native for weight in gate_up],
                [weight.native for weight in down],
                ACTIVATIONS.index(activation),
                _array(x),
                _array(routed[0]),
                _array(routed[1]),
                _array(before),
            )
        )


class Attention:
    """One layer's paged cache on a device, poisoned at first, and the attention over it.

    Parameters
    ----------
    device
        It is on.
    blocks
        Of the cache.
    sizes
        Of the heads.
    block_len
        Tokens in a block: a power of two from 16 on.
    bits
        Of a cached value: 32 or 16 (float32, bfloat16), 8 or 4 (rounded for each head and token).
    rule
        Of the scores.
    """

    def __init__(
        self, device: Device, blocks: int, sizes: HeadSizes, block_len: int, bits: int, rule: AttentionRule
    ) -> None:
        self._sizes, self._rule = sizes, rule
        shape = (sizes.num_heads, sizes.num_kv_heads, sizes.key_dim, sizes.value_dim, block_len)
        self._cache = device.module.Cache(device.native, blocks, bits, shape)

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: list[Span], rotation: Rotation | None = None
    ) -> torch.Tensor:
        """Write keys and values, and attend: ``[rows, heads, dim]`` each, as the result is.

        With a rotation, queries and keys are rotated on the way.
        """
        cos, sin, factors, is_interleaved = rotation or (None, None, None, False)
        rule = self._rule
        kv_lens = [rule.sight(first + i) for _, count, first, _ in spans for i in range(count)]
        seen = torch.tensor(kv_lens, dtype=torch.int32) if rule.images else None
        out = self._cache.attend(
            _array(q * rule.scale), _array(k), _array(v), spans, rule.softcap, rule.window, _array(rule.alibi_slopes),
            _array(rule.distance_biases), _array(rule.sinks), _array(seen),
            _unwritten(q.shape[0], self._sizes.num_heads, self._sizes.value_dim),
            _array(cos), _array(sin), is_interleaved, _array(factors),
        )  # fmt: skip
        return torch.from_numpy(out)

    def write(self, k: torch.Tensor, v: torch.Tensor, spans: list[Span]) -> None:
        """Write keys and values ``[rows, heads, dim]``."""
        self._cache.write(_array(k), _array(v), spans)

    def project(self, q: torch.Tensor, spans: list[Span], weight: Any) -> torch.Tensor:
        """Attend to what was written before, without any rule, and return the result times ``weight``."""
        y = _unwritten(q.shape[0], weight.exact.shape[0])
        return torch.from_numpy(self._cache.project(_array(q * self._rule.scale), spans, weight.native, y))

    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return what the cache holds."""
        held: np.ndarray[Any, np.dtype[np.uint8]] = self._cache.bytes()
        return held


@contextmanager
def opened(name: str) -> Iterator[Device]:
    """Yield the device ``emulated``, ``gpu`` or ``cpu-`` and an instruction set, which is chosen meanwhile."""
    kind, _, isa = name.partition("-")
    if not isa:
        yield Device(kind)
        return
    module = host_module()
    before = module.current_isa()
    module.select_isa(isa)
    try:
        yield Device(kind, isa)
    finally:
        module.select_isa(before)
