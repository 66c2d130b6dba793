"""Detection of a checkpoint's quantization, and readers of AWQ and GPTQ layers.

:func:`quantization_settings` finds the settings; a field of them that is set and not used is refused by name. Which
layers are codes their tensors say, not the lists of exceptions (``ignore``, ``modules_to_not_convert`` and the like).

The families describe a model by the weights of its linear layers, ``X.weight``. Where a checkpoint has ``X.qweight``
instead, :func:`with_quantized` puts the codes in that weight's place. How they are packed is in
``backend_cpp/weights/quantized/awq_gptq.h``, which decodes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.manifest import Expression, Load, Quantized, over_loads
from lmdeploy.turbomind.mxfp4 import METHOD as MXFP4
from lmdeploy.turbomind.row_quantized import BLOCK_METHODS
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex
from lmdeploy.turbomind.scaled import METHODS as SCALED_METHODS
from lmdeploy.turbomind.scaled import ScaledWeights

if TYPE_CHECKING:
    from typing_extensions import Self

# Files in which tools say what others say in config.json: the object in it, the method, and a field that it has.
_FILES = (
    ("hf_quant_config.json", "quantization", "modelopt", "quant_algo"),
    ("quantize_config.json", "", "gptq", "bits"),
    ("quant_config.json", "", "awq", "w_bit"),
)
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")  # some tools write quantization_config only there
_NAMES = {"w_bit": "bits", "q_group_size": "group_size", "packing_format": "backend"}
_METHODS = {  # by a field, for settings that name none
    "quant_algo": "modelopt", "config_groups": "compressed-tensors", "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes", "zero_point": "awq", "desc_act": "gptq", "activation_scheme": "fp8",
    "bits": "mlx",
}  # fmt: skip
_FEWEST_BITS = 4  # of a code in memory
_AUTO_ROUND = ("auto-round", "intel/auto-round")
# Fields that are read here and where the methods are, or that say how the codes were made.
_QUANTIZED_FIELDS = """
    bits group_size sym version format checkpoint_format backend dynamic extra_config is_marlin_format lm_head
    data_type act_bits meta desc_act static_groups true_sequential damp_percent damp_auto_increment
    act_group_aware mse pack_dtype model_name_or_path model_file_base_name model_seqlen seqlen nsamples dataset
    tokenizer batch_size iters lr minmax_lr amp scale_dtype enable_minmax_tuning enable_norm_bias_tuning
    enable_quanted_input use_quant_input enable_alg_ext gradient_accumulate_steps low_gpu_mem_usage
    low_cpu_mem_usage not_use_best_mse sampler autoround_version quant_lm_head block_name_to_quantize
    to_quant_block_names quant_block_list super_bits super_group_size act_data_type act_dynamic act_group_size
    act_sym modules_in_block_to_quantize module_name_preceding_first_block pad_token_id use_cuda_fp16
    max_input_length cache_block_outputs use_exllama disable_exllama exllama_config zero_point do_fuse
    modules_to_fuse fuse_max_seq_len provider
"""
_ANYWHERE = """quant_method ignore ignored_layers modules_to_not_convert exclude_modules llm_int8_skip_modules exclude
    kv_cache_scheme kv_cache_quant_algo producer"""
_FIELDS = {
    "awq": _QUANTIZED_FIELDS,
    "gptq": _QUANTIZED_FIELDS,
    MXFP4: "",
    "fp8": """fmt activation_scheme weight_block_size expert_dtype scale_fmt quant_algo moe_quant_algo group_size
        config_groups quantized_layers""",
    "fbgemm_fp8": "activation_scale_ub",
    "compressed-tensors": """config_groups format quantization_status sparsity_config global_compression_ratio version
        run_compressed""",
    "modelopt": "quant_algo group_size config_groups quantized_layers",
    "quark": """global_quant_config layer_quant_config layer_type_quant_config algo_config export version quant_mode
        kv_cache_quant_config kv_cache_post_rope softmax_quant_spec log_severity_level""",
    "smooth_quant": "quant_dtype",
}
_SUPPORTED = "supported: " + ", ".join(
    ("awq (version gemm, 4 bits)", "gptq (3, 4 and 8 bits)", MXFP4, *SCALED_METHODS, *BLOCK_METHODS)
)


@dataclass(frozen=True)
class Quantization:
    """Quantization of a checkpoint in config.json."""

    method: Literal["awq", "gptq"]  # how they are packed
    bits: int  # of a code
    group_size: int  # neighbouring inputs that share a scale; -1: all of a row
    zeros_less_one: bool  # zero points are stored less one, as the first format of GPTQ has them

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Self | None":
        """Return the quantization in ``quantization_config`` of config.json; None if it is not AWQ or GPTQ.

        Raises `UnsupportedModelError` for a method, or a variant of one, that the engine cannot read.
        """
        given = config.get("quantization_config")
        if not given:
            return None
        if not isinstance(given, dict):
            raise UnsupportedModelError(f"quantization_config must be an object, got {given!r}; {_SUPPORTED}")
        _reject_unused(given)
        if given.get("quant_method") in {MXFP4, *SCALED_METHODS, *BLOCK_METHODS}:
            return None
        method, bits, group_size = given.get("quant_method"), given.get("bits"), given.get("group_size")
        if method not in {"awq", "gptq"}:
            raise UnsupportedModelError(f"quantized weights of method {method!r} are not supported; {_SUPPORTED}")
        if type(bits) is not int or bits not in ((4,) if method == "awq" else (3, 4, 8)):
            raise UnsupportedModelError(f"{method} weights of {bits!r} bits are not supported; {_SUPPORTED}")
        if type(group_size) is not int or (group_size != -1 and (group_size < 1 or group_size % 8)):
            raise UnsupportedModelError(
                f"{method} group_size must be -1 or a positive multiple of 8, got {group_size!r}"
            )
        for name, setting in (given.get("extra_config") or {}).items():  # auto-round's, of single layers
            if setting.get("bits", bits) not in (bits, 16, 32):
                raise UnsupportedModelError(f"{method} weights with {setting['bits']} bits in {name} are not supported")
        kind, inputs = given.get("data_type") or "int", given.get("act_bits") or 16
        if kind != "int" or inputs < 16:
            raise UnsupportedModelError(
                f"{method} weights with data_type {kind!r} and act_bits {inputs} are not supported; supported: int, 16"
            )
        variant = _awq_variant(given) if method == "awq" else _gptq_variant(given)
        return cls(method, bits, group_size, zeros_less_one=variant == "gptq")


def quantization_settings(
    model_dir: Path, config: Mapping[str, Any], read: Callable[[Path, str], Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the quantization settings of a checkpoint, named as in ``quantization_config``; None: it has none."""
    return settings_and_file(model_dir, config, read)[0]


def settings_and_file(
    model_dir: Path, config: Mapping[str, Any], read: Callable[[Path, str], Mapping[str, Any]]
) -> tuple[dict[str, Any] | None, str]:
    """Return the quantization settings of a checkpoint, see `quantization_settings`, and the file that has them.

    ``model_dir``, ``config``: the checkpoint, and its config.json. ``read``: reads another JSON file of it.
    """
    texts = [config, *(config[key] for key in _TEXT_CONFIGS if isinstance(config.get(key), dict))]
    keys = ("quantization_config", "compression_config", "quantization")
    given, file = next((text[key] for key in keys for text in texts if text.get(key)), None), "config.json"
    if given is None:
        for name, key, method, field in _FILES:
            if (model_dir / name).is_file():
                whole = read(model_dir, name)
                content = whole.get(key) if key else whole
                if isinstance(content, dict) and content.get(field) is not None:
                    given, file = {"quant_method": method, **content}, name
                    break
    if not isinstance(given, dict):
        return given, file
    if isinstance(given.get("quantization"), dict):  # hf_quant_config.json's within config.json's
        given = {**given, "quantization": None, **given["quantization"]}
    named = {_NAMES.get(name, name): value for name, value in given.items()}
    if not named.get("quant_method"):
        named["quant_method"] = next((method for field, method in _METHODS.items() if field in given), None)
    if named["quant_method"] in _AUTO_ROUND:
        packing = str(named.pop("backend", "gptq"))
        named["quant_method"] = next(
            (method for method in ("awq", "gptq") if method in packing), f"auto-round {packing}"
        )
    return named, file


def _reject_unused(given: Mapping[str, Any]) -> None:
    """Raise ``UnsupportedModelError`` for a field that is set and that nothing here knows."""
    known = _FIELDS.get(str(given.get("quant_method")))
    for name, value in given.items():
        is_set = value not in (None, False, "", [], {})
        if known is not None and is_set and name not in (*known.split(), *_ANYWHERE.split()):
            raise UnsupportedModelError(
                f"{given['quant_method']} weights with {name} {str(value)[:80]!r} are not supported: {name} is not "
                "known here; serve the model that it was made from"
            )


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
    for pattern, settings in (given.get("dynamic") or {}).items():
        if settings and not pattern.startswith("-:"):  # an excluded layer is stored as numbers
            raise UnsupportedModelError(
                f"gptq weights with `dynamic` settings of single layers ({pattern}) are not supported, only exclusions"
            )
    return str(variant)


def weight_format(config: Mapping[str, Any]) -> str:
    """Return the weight format of config.json: ``hf``, ``awq``, ``gptq`` or a method of 8-bit weights with scales.

    ``meta_llama`` is what the copy in the cache of a checkpoint in Meta's layout says of itself. Raises
    `UnsupportedModelError` as :meth:`Quantization.from_config` and :meth:`ScaledWeights.from_config`.
    """
    found = Quantization.from_config(config) or ScaledWeights.from_config(config)
    return config.get("model_format", "hf") if found is None else found.method


def weight_format_of_workers(config: Mapping[str, Any]) -> str:
    """Return :func:`weight_format` of config.json for the PyTorch engine.

    Raises `UnsupportedModelError` as that, and for codes that only TurboMind reads.
    """
    stored, found = weight_format(config), Quantization.from_config(config)
    given = config.get("quantization_config") or {}
    if given.get("quant_method") in BLOCK_METHODS or (found is not None and found.bits < _FEWEST_BITS):
        kind = f"{given['quant_method']} weights" if found is None else f"{found.method} weights of {found.bits} bits"
        raise UnsupportedModelError(f"{kind} are not supported by the PyTorch engine: use the backend turbomind")
    return stored


def check_model_format(requested: str | None, found: str) -> None:
    """Raise ``ValueError`` if a ``model_format`` is given that is not the checkpoint's ``found``."""
    if requested is not None and requested != found:
        raise ValueError(
            f"model_format is {requested}, but the checkpoint's weights are {found}; leave it out or name that"
        )


def with_quantized(
    tensors: Mapping[str, Expression], quantization: Quantization, index: SafetensorsIndex
) -> dict[str, Expression]:
    """Return the engine tensors with the codes in place of each weight that the checkpoint stores as codes."""

    def stored(load: Load) -> Expression:
        layer = _layer_of(load)
        if layer is None or f"{layer}.qweight" not in index.tensors:
            return load
        return _quantized_of(layer, load.shape, quantization, has_groups=f"{layer}.g_idx" in index.tensors)

    return {name: over_loads(expression, stored) for name, expression in tensors.items()}


def _layer_of(load: Load) -> str | None:
    """Return the name of the linear layer whose weight this may be."""
    return load.name.removesuffix(".weight") if load.name.endswith(".weight") and len(load.shape) == 2 else None


def _quantized_of(layer: str, shape: tuple[int, ...], quantization: Quantization, *, has_groups: bool) -> Quantized:
    out_features, in_features = shape
    bits = quantization.bits
    width, per_word = (3, 32) if bits < _FEWEST_BITS else (1, 32 // bits)  # words, and the values they are filled by
    group = in_features if quantization.group_size == -1 else quantization.group_size
    groups = -(-in_features // group)
    packed_out = -(-out_features // per_word) * width
    is_awq = quantization.method == "awq"
    words = (in_features, packed_out) if is_awq else (-(-in_features // per_word) * width, out_features)
    integers, numbers = ("I32",), ("F16", "BF16", "F32")
    args = [
        Load(f"{layer}.qweight", words, integers),
        Load(f"{layer}.qzeros", (groups, packed_out), integers),
        Load(f"{layer}.scales", (groups, out_features), numbers),
    ]
    if has_groups:
        args.append(Load(f"{layer}.g_idx", (in_features,), integers))
    problems = []
    # Shapes that its packing cannot express, and AutoAWQ's rows of unequal groups.
    if in_features % (1 if is_awq else per_word):
        problems.append(f"its {in_features} inputs must be a multiple of {per_word}")
    if out_features % per_word:
        problems.append(f"its {out_features} outputs must be a multiple of {per_word}")
    if group % 8 or (is_awq and in_features % group):
        problems.append(f"its {in_features} inputs do not fall into groups of {group}")
    return Quantized(
        layout=quantization.method,
        bits=max(bits, _FEWEST_BITS),
        group=group,
        zeros_less_one=quantization.zeros_less_one,
        shape=shape,
        args=tuple(args),
        problems=tuple(f"{layer}: {problem}" for problem in problems),
        stored_bits=bits if bits < _FEWEST_BITS else 0,
    )


def is_zero_bias_of_quantized(name: str, index: SafetensorsIndex) -> bool:
    """Return whether a tensor is a bias of zeros, which GPTQ tools write for quantized layers that have none."""
    layer = name.removesuffix(".bias")
    return layer != name and f"{layer}.qweight" in index.tensors and not index.tensor(name).any()
