"""Checkpoints whose linear layers are stored as AWQ or GPTQ codes.

The families describe a model by the weights of its linear layers, ``X.weight``. Where a checkpoint has ``X.qweight``
instead, :func:`with_codes` puts the codes in that weight's place. How they are packed is in
``backend_cpp/weights/codes/awq_gptq.h``, which decodes them.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.manifest import Expression, Load, Quantized
from lmdeploy.turbomind.mxfp4 import METHOD as MXFP4
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex
from lmdeploy.turbomind.scaled import METHODS as SCALED_METHODS
from lmdeploy.turbomind.scaled import ScaledWeights

if TYPE_CHECKING:
    from typing_extensions import Self

_SUPPORTED = f"supported: awq (version gemm, 4 bits), gptq (4 and 8 bits), mxfp4, {', '.join(SCALED_METHODS)}"


@dataclass(frozen=True)
class Quantization:
    """What config.json says of a checkpoint's codes.

    Attributes
    ----------
    method
        How they are packed.
    bits
        Of a code.
    group_size
        Neighbouring inputs that share a scale; -1: all of a row.
    zeros_less_one
        Zero points are stored less one, as the first format of GPTQ has them.
    """

    method: Literal["awq", "gptq"]
    bits: int
    group_size: int
    zeros_less_one: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Self | None":
        """Return what ``quantization_config`` of config.json says; None if it says nothing of AWQ or GPTQ codes.

        Raises
        ------
        UnsupportedModelError
            For a method, or a variant of one, that the engine cannot read.
        """
        given = config.get("quantization_config")
        if not given:
            return None
        if not isinstance(given, dict):
            raise UnsupportedModelError(f"quantization_config must be an object, got {given!r}; {_SUPPORTED}")
        if given.get("quant_method") in {MXFP4, *SCALED_METHODS}:
            return None
        method, bits, group_size = given.get("quant_method"), given.get("bits"), given.get("group_size")
        if method not in {"awq", "gptq"}:
            raise UnsupportedModelError(f"quantized weights of method {method!r} are not supported; {_SUPPORTED}")
        if type(bits) is not int or bits not in ((4,) if method == "awq" else (4, 8)):
            raise UnsupportedModelError(f"{method} weights of {bits!r} bits are not supported; {_SUPPORTED}")
        if type(group_size) is not int or (group_size != -1 and (group_size < 1 or group_size % 8)):
            raise UnsupportedModelError(
                f"{method} group_size must be -1 or a positive multiple of 8, got {group_size!r}"
            )
        variant = _awq_variant(given) if method == "awq" else _gptq_variant(given)
        return cls(method, bits, group_size, zeros_less_one=variant == "gptq")


def _awq_variant(given: Mapping[str, Any]) -> str:
    version = "llm-awq" if given.get("backend") == "llm-awq" else given.get("version") or given.get("format") or "gemm"
    if str(version).lower() != "gemm":
        raise UnsupportedModelError(f"awq weights of version {version!r} are not supported; {_SUPPORTED}")
    return "awq"


def _gptq_variant(given: Mapping[str, Any]) -> str:
    # Checkpoints made before there was a second format name none.
    variant = given.get("checkpoint_format") or given.get("format") or "gptq"
    if given.get("is_marlin_format"):
        variant = "marlin"
    if variant not in {"gptq", "gptq_v2"}:
        raise UnsupportedModelError(
            f"gptq weights of checkpoint_format {variant!r} are not supported; supported: gptq, gptq_v2"
        )
    if given.get("dynamic"):
        raise UnsupportedModelError("gptq weights with `dynamic` settings of single layers are not supported")
    return str(variant)


def weight_format(config: Mapping[str, Any]) -> str:
    """Return what config.json describes: ``hf`` (numbers), ``awq``, ``gptq`` or a method of 8-bit weights with scales.

    ``meta_llama`` is what the copy in the cache of a checkpoint in Meta's layout says of itself.

    Raises
    ------
    UnsupportedModelError
        As :meth:`Quantization.from_config` and :meth:`ScaledWeights.from_config`.
    """
    found = Quantization.from_config(config) or ScaledWeights.from_config(config)
    return config.get("model_format", "hf") if found is None else found.method


def check_model_format(wanted: str | None, found: str) -> None:
    """Raise ``ValueError`` if a ``model_format`` is given that is not the checkpoint's ``found``."""
    if wanted is not None and wanted != found:
        raise ValueError(
            f"model_format is {wanted}, but the checkpoint's weights are {found}; leave model_format out or name that"
        )


def with_codes(
    tensors: Mapping[str, Expression], quantization: Quantization, index: SafetensorsIndex
) -> dict[str, Expression]:
    """Return the engine tensors with the codes in place of each weight that the checkpoint stores as codes."""

    def replaced(expression: Expression) -> Expression:
        if isinstance(expression, Load):
            layer = _layer_of(expression)
            if layer is None or f"{layer}.qweight" not in index.tensors:
                return expression
            return _codes_of(layer, expression.shape, quantization, has_groups=f"{layer}.g_idx" in index.tensors)
        args: Any = tuple(map(replaced, expression.args))
        return dataclasses.replace(expression, args=args)

    return {name: replaced(expression) for name, expression in tensors.items()}


def _layer_of(load: Load) -> str | None:
    """Return the name of the linear layer whose weight this may be."""
    return load.name.removesuffix(".weight") if load.name.endswith(".weight") and len(load.shape) == 2 else None


def _codes_of(layer: str, shape: tuple[int, ...], quantization: Quantization, *, has_groups: bool) -> Quantized:
    out_features, in_features = shape
    per_word = 32 // quantization.bits
    group = in_features if quantization.group_size == -1 else quantization.group_size
    groups = -(-in_features // group)
    packed_out = -(-out_features // per_word)
    is_awq = quantization.method == "awq"
    words = (in_features, packed_out) if is_awq else (-(-in_features // per_word), out_features)
    integers, numbers = ("I32",), ("F16", "BF16", "F32")
    args = [
        Load(f"{layer}.qweight", words, integers),
        Load(f"{layer}.qzeros", (groups, packed_out), integers),
        Load(f"{layer}.scales", (groups, out_features), numbers),
    ]
    if has_groups:
        args.append(Load(f"{layer}.g_idx", (in_features,), integers))
    problems = []
    # What its packing cannot express, and AutoAWQ's rows of unequal groups.
    if in_features % (1 if is_awq else per_word):
        problems.append(f"its {in_features} inputs must be a multiple of {per_word}")
    if out_features % per_word:
        problems.append(f"its {out_features} outputs must be a multiple of {per_word}")
    if group % 8 or (is_awq and in_features % group):
        problems.append(f"its {in_features} inputs do not fall into groups of {group}")
    return Quantized(
        layout=quantization.method,
        bits=quantization.bits,
        group=group,
        zeros_less_one=quantization.zeros_less_one,
        shape=shape,
        args=tuple(args),
        problems=tuple(f"{layer}: {problem}" for problem in problems),
    )


def is_zero_bias_alongside_codes(name: str, index: SafetensorsIndex) -> bool:
    """Return whether a tensor is a bias of zeros, which GPTQ tools write for quantized layers that have none."""
    layer = name.removesuffix(".bias")
    if layer == name or f"{layer}.qweight" not in index.tensors:
        return False
    from safetensors import safe_open

    with safe_open(index.files[index.tensors[name].file], "pt") as file:
        return not file.get_tensor(name).any()
