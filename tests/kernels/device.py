"""Devices that operators are tested on, and their operators on torch tensors.

A device is the CPU with one instruction set, CUDA emulated on the CPU, or a GPU where the build has CUDA and finds one.
All run the operators of ``backend_cpp/device/operators.h``; ``backend_cpp/testing/bindings`` says what the compiled
modules take.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lmdeploy.turbomind.spec.parts import ACTIVATIONS, GROUP_SCORES, ROUTER_SCORES
from tests.kernels.arguments import AttentionRule, HeadSizes, Router, Span

# Instruction sets that multiply bfloat16, and those of them that do it on tiles.
BF16_TILES = ("amx", "amx_emulated")
BF16_PRODUCTS = ("avx512bf16", *BF16_TILES)
# Of a cached value, by CacheType.
CACHE_BITS = (32, 16, 8, 4)
PLAIN = AttentionRule(1.0)
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


def multiply_quantized(directory: Path, name: str, shape: list[int], x: torch.Tensor) -> torch.Tensor | None:
    """Return ``x W^T`` for a matrix stored as codes, as the CPU multiplies them; None where it takes the numbers."""
    y = host_module().multiply_quantized(str(directory), name, shape, x.numpy())
    return None if y is None else torch.from_numpy(y)


def look_up_quantized(directory: Path, name: str, shape: list[int]) -> tuple[torch.Tensor, int]:
    """Return all rows of a matrix stored as codes, as an embedding's are looked up on the CPU, and its bytes there."""
    rows, size = host_module().look_up_quantized(str(directory), name, shape)
    return torch.from_numpy(rows), size


class Device:
    """One device's operators. Matrices are row-major and float32 where nothing else is said.

    ``name``: ``cpu``, ``emulated`` or ``gpu``. ``isa``: the instruction set of the CPU; empty on CUDA. ``native``: the
    compiled module's object. An operation of ``backend_cpp/kernels`` is a method, given its fields, whose tensors it
    writes: ``native.match_rms(like, rows, size, x)``.
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
        if before is None:
            return self._linear(weight, x, x.contiguous())
        y = before.clone()
        self.native.linear(weight.native.layer, x.contiguous(), len(x), y, True)
        return y

    def _linear(self, weight: Any, x: torch.Tensor, given: Any) -> torch.Tensor:
        y = torch.full((len(x), weight.exact.shape[0]), torch.nan)
        for _ in range(2):  # a call leaves its working memory fit for the next
            self.native.linear(weight.native.layer, given, len(x), y, False)
        return y

    def linear_of_norms(
        self, weight: Any, x: torch.Tensor, scale: torch.Tensor, eps: float, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the norm of ``x``'s rows with ``scale`` ``[in]`` times the weight: RMS, or with ``bias`` layer."""
        norm = (int(bias is not None), eps, scale, bias)
        return self._linear(weight, x, (norm, x.contiguous(), torch.empty(x.shape)))

    def linear_of_gates(self, weight: Any, x: torch.Tensor, activation: str) -> torch.Tensor:
        """Return the gated activation of ``x`` ``[rows, 2 in]``, times the weight."""
        workspace = torch.empty(len(x), x.shape[1] // 2)
        return self._linear(weight, x, (ACTIVATIONS.index(activation), x.contiguous(), workspace))

    def gated_mlp(
        self, gate_up: Any, activation: str, down: Any, x: torch.Tensor, before: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return ``down`` of the gated activation of ``gate_up`` of ``x`` ``[rows, in]``, added to ``before``."""
        y = torch.full((len(x), down.exact.shape[0]), torch.nan) if before is None else before.clone()
        workspaces = torch.empty(len(x), gate_up.exact.shape[0]), torch.empty(len(x), down.exact.shape[1])
        layers = gate_up.native.layer, ACTIVATIONS.index(activation), down.native.layer
        self.native.gated_mlp(*layers, *workspaces, x.contiguous(), len(x), y, before is not None)
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return RMSNorm of the rows of ``x`` ``[rows, size]``, times ``weight`` ``[size]``."""
        return self._norm(x, (0, eps, weight, None))

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
        """Return LayerNorm of the rows of ``x`` ``[rows, size]``, times ``weight`` plus ``bias`` ``[size]``."""
        return self._norm(x, (1, eps, weight, bias))

    def _norm(self, x: torch.Tensor, weight: tuple[Any, ...]) -> torch.Tensor:
        y = torch.full_like(x, torch.nan)
        self.native.norm(weight, x, y)
        return y

    def norm_heads(
        self, x: torch.Tensor, first: int, heads: int, weight: torch.Tensor, eps: float, *, is_layer_norm: bool = False
    ) -> torch.Tensor:
        """Return ``x`` with each of the heads that begin in column ``first`` normed by ``weight`` ``[head_dim]``."""
        y = x.clone()
        head = y[:, first : first + heads * len(weight)].unflatten(1, (heads, len(weight)))
        self.native.norm((int(is_layer_norm), eps, weight, None), head, head)
        return y

    def activate(self, x: torch.Tensor, activation: str, *, is_gated: bool) -> torch.Tensor:
        """Return ``act(x)``, or, gated, ``act(gate) * up``, where gate is the first half of each row."""
        gate, up = x.chunk(2, dim=1) if is_gated else (x, None)
        y = torch.full(gate.shape, torch.nan)
        self.native.activate(ACTIVATIONS.index(activation), gate, up, y)
        return y

    def apply(
        self, kind: str, x: torch.Tensor, *, scale: float = 1, limit: float = 0,
        factors: torch.Tensor | None = None, head_dim: int | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return ``x`` ``[rows, ..., width]``, of each width the first ``head_dim`` as a ``Pointwise`` changes them."""
        y = x.clone()
        heads = y.view(len(x), -1, x.shape[-1])[..., :head_dim]
        self.native.apply((POINTWISE.index(kind), scale, limit, factors), heads)
        return y

    def add_scaled(self, scale: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return ``y + scale x``."""
        total = y.clone()
        self.native.add_scaled(scale, x, *x.shape, total)
        return total

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
        rows, pairs = len(positions), frequencies.shape[1]
        cosine, sine = torch.full((2, rows, pairs), torch.nan)
        axes = positions.numel() // rows
        self.native.rope_table((positions, sets, frequencies, pairs, scale, axes, axis_of_pair), rows, cosine, sine)
        return cosine, sine

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
        y = x.clone()
        self.native.rope((cos, sin, cos.shape[1], is_interleaved), y, factors)
        return y

    def embed(self, table: Any, tokens: torch.Tensor, scale: float) -> torch.Tensor:
        """Return rows of the table, a :class:`~tests.kernels.weights.Weight`, times ``scale``."""
        y = torch.full((len(tokens), table.exact.shape[1]), torch.nan)
        self.native.embed(table.native, tokens, len(tokens), scale, y)
        return y

    def gather_rows(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``x`` that ``indices``, int32, name."""
        y = torch.full((len(indices), x.shape[1]), torch.nan)
        self.native.gather_rows(x, indices, *y.shape, y)
        return y

    def scatter_rows(
        self, x: torch.Tensor, indices: torch.Tensor, y: torch.Tensor, *, accumulate: bool = False
    ) -> torch.Tensor:
        """Return ``y`` with the rows that ``indices``, int32, name replaced by those of ``x``, or these added."""
        y = y.clone()
        self.native.scatter_rows(x, indices, *x.shape, y, accumulate)
        return y

    def copy_heads(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return ``y`` ``[rows, heads, width]`` with the heads of ``x``, not wider, at the front of its own."""
        y = y.clone()
        self.native.copy_heads(x, y[..., : x.shape[2]])
        return y

    def route(self, router: Router, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return experts (int32) and weights, both ``[rows, top_k]``, of ``logits`` ``[rows, experts]``."""
        shape = (len(logits), router.top_k)
        experts, weights = torch.full(shape, -1, dtype=torch.int32), torch.full(shape, torch.nan)
        params = (
            router.num_experts, router.top_k, ROUTER_SCORES.index(router.score), router.mixer_jitter, router.num_groups,
            router.top_groups, GROUP_SCORES.index(router.group_score), router.choice_bias, router.normalize,
            router.scale, router.expert_scales, router.token_experts, router.tokens,
        )  # fmt: skip
        self.native.route(params, logits, len(logits), experts, weights)
        return experts, weights

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
        y = before.clone()
        self.native.add_experts(
            [weight.native for weight in gate_up], [weight.native for weight in down], ACTIVATIONS.index(activation),
            x, *routed[0].shape, *(one.contiguous() for one in routed), y,
        )  # fmt: skip
        return y


class Cache:
    """Pages of a paged cache on a device, poisoned at first.

    ``device``: it is on; ``blocks``: how many; ``sizes``: of the heads; ``block_len``: tokens in a block: a power of
    two from 16 on; ``bits``: of a cached value: 32 or 16 (float32, bfloat16), 8 or 4 (rounded for each head and
    token); ``layers``: of them the last is used. ``pool``: ``[blocks, bytes]``.
    """

    def __init__(
        self, device: Device, blocks: int, sizes: HeadSizes, block_len: int, bits: int, layers: int = 1
    ) -> None:
        self.native, self._num_heads, self._block_len = device.native, sizes.num_heads, block_len
        _, *of_cache = shape = (*astuple(sizes), block_len)
        self._fields = ((CACHE_BITS.index(bits), layers, *of_cache, 0), layers - 1)
        block_bytes = layers * device.module.cache_block_bytes(bits, shape)
        self.pool = torch.full((blocks, block_bytes), 0xFF, dtype=torch.uint8)

    def params(self, rule: AttentionRule = PLAIN, seen: torch.Tensor | None = None) -> tuple[object, ...]:
        """Return the fields of ``AttentionParams``: rows see keys before the positions ``seen``, or up to theirs."""
        layout, layer = self._fields
        biases = rule.distance_biases
        return (
            layout, self.pool, layer, self._num_heads, (0, 0), None, 0, rule.softcap, rule.alibi_slopes, biases,
            0 if biases is None else biases.shape[1] // 2, rule.window, seen, rule.sinks,
        )  # fmt: skip

    def write(self, k: torch.Tensor, v: torch.Tensor, spans: list[Span]) -> None:
        """Write keys and values ``[rows, heads, dim]``."""
        self.native.set_spans(spans, self._block_len)
        self.native.rope_and_write((None, None, 0, False), self.params(), None, None, k, v)


class Attention(Cache):
    """A cache, and the attention over it by a ``rule`` of the scores."""

    def __init__(
        self, device: Device, blocks: int, sizes: HeadSizes, block_len: int, bits: int, rule: AttentionRule
    ) -> None:
        super().__init__(device, blocks, sizes, block_len, bits)
        self._sizes, self._rule = sizes, rule

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: list[Span], rotation: Rotation | None = None
    ) -> torch.Tensor:
        """Write keys and values, and attend: ``[rows, heads, dim]`` each, as the result is.

        With a rotation, queries and keys are rotated on the way.
        """
        rule = self._rule
        kv_lens = [rule.kv_len_of(first + i) for _, count, first, _ in spans for i in range(count)]
        params = self.params(rule, torch.tensor(kv_lens, dtype=torch.int32) if rule.images else None)
        q, out = q * rule.scale, torch.full((len(q), self._sizes.num_heads, self._sizes.value_dim), torch.nan)
        self.native.set_spans(spans, self._block_len)
        cos, sin, factors, is_interleaved = rotation or (None, None, None, False)
        table = (cos, sin, 0 if cos is None else cos.shape[1], is_interleaved)
        self.native.attention(table, params, q, factors, k.clone(), v, out)
        return out

    def project(self, q: torch.Tensor, spans: list[Span], weight: Any) -> torch.Tensor:
        """Attend to what was written before, without any rule, and return the result times ``weight``."""
        y = torch.full((len(q), weight.exact.shape[0]), torch.nan)
        workspace = torch.full((len(q), self._sizes.num_heads, self._sizes.value_dim), torch.nan)
        self.native.set_spans(spans, self._block_len)
        q = q * self._rule.scale
        self.native.project_attention(self.params(), q, workspace, weight.native.layer, y, False)
        return y


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
