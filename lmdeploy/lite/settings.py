"""Settings of `lmdeploy lite`'s commands, whose options are made from them. Imports no torch."""

from dataclasses import dataclass

from lmdeploy.fields import field

WHOLE_ROW = -1
FORMATS = ("own", "compressed-tensors")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of every command that reads a calibration text. Raises `ValueError` if a value is out of range."""

    calib_dataset: str | None = field.string(
        None,
        "Calibration text: a .txt, .json or .jsonl file, a folder of such files, or ptb, wikitext2, c4 or pileval, "
        "which need the package `datasets` (default: texts from this package and Python's standard library).",
    )
    calib_samples: int = field.integer(128, "Maximum number of calibration samples.", low=1)
    calib_seqlen: int = field.integer(2048, "Tokens per calibration sample.", low=1)
    batch_size: int = field.integer(1, "Calibration samples per batch.", low=1)
    device: str = "cpu"  # ``cpu`` or ``cuda``
    dtype: str = field.string(
        "auto",
        "Type of tensors that are not quantized; auto: float16.",
        choices=("auto", "float16", "bfloat16"),
    )

    def __post_init__(self) -> None:
        field.require_valid(self)
        if self.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise ValueError("device is cuda, but torch sees no CUDA device; use cpu")

    @property
    def stored_dtype(self) -> str:
        """Type of what is not quantized."""
        return "float16" if self.dtype == "auto" else self.dtype


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings(RunSettings):
    """Calibration data and statistics."""

    search_scale: bool = field.boolean(False, "Search the ratio of AWQ's scales instead of comparing outputs.")


@dataclass(frozen=True, kw_only=True)
class QuantizationSettings(RunSettings):
    """Further settings of commands that write quantized weights."""

    format: str = field.string(
        "own",
        "Storage format: that of the method, or that of the package compressed-tensors, which transformers and other "
        "servers read.",
        choices=FORMATS,
    )

    @property
    def is_compressed(self) -> bool:
        """Whether codes are stored as the package `compressed-tensors` does."""
        return self.format != FORMATS[0]


@dataclass(frozen=True, kw_only=True)
class GroupedSettings(QuantizationSettings):
    """Further settings of AWQ and GPTQ."""

    w_bits: int = field.integer(4, "Bits per weight; AWQ stores 8 bits in GPTQ's format.", choices=(4, 8))
    w_group_size: int | None = field.integer(
        None,
        "Inputs per scale; -1: one scale per row (default: the largest of 128, 64, 32, 16 and 8 that divides the "
        "inputs of every layer).",
        low=WHOLE_ROW,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.w_group_size
        if size is not None and size != WHOLE_ROW and (size < 8 or size % 8):
            raise ValueError(f"w_group_size must be -1 or a multiple of 8, got {size}")


@dataclass(frozen=True, kw_only=True)
class AwqSettings(GroupedSettings):
    """Settings of AWQ."""

    w_sym: bool = field.boolean(False, "Symmetric quantization, without zero points.")
    # Without, each group of layers has the ratio 0.5 where that is better than none
    search_scale: bool = field.boolean(False, "Search the scales of each layer: slower, more accurate.")


@dataclass(frozen=True, kw_only=True)
class GptqSettings(GroupedSettings):
    """Settings of GPTQ, which is symmetric."""

    act_order: bool = field.boolean(
        False, "Quantize inputs with large activations first: more accurate, slower to serve."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.act_order and self.is_compressed:
            raise ValueError("compressed-tensors has no form for inputs in an order: leave --act-order or --format out")


@dataclass(frozen=True, kw_only=True)
class SmoothQuantSettings(QuantizationSettings):
    """Settings of SmoothQuant."""

    quant_dtype: str = "int8"  # of weights: ``int8`` or ``fp8`` (E4M3)
    # Without, the strength is 0.5 everywhere
    search_scale: bool = field.boolean(False, "Search the smoothing strength of each layer: slower, more accurate.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quant_dtype not in ("int8", "fp8"):
            raise ValueError(f"quant_dtype must be one of int8, fp8, got {self.quant_dtype!r}")
