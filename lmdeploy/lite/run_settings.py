"""What every command that reads a calibration text has to be given."""

from dataclasses import dataclass

import torch

FORMATS = ("own", "compressed-tensors")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Text, device and type.

    Parameters
    ----------
    calib_dataset, calib_samples, calib_seqlen
        Text (see :func:`lmdeploy.lite.calibration.load_text`), and how many pieces of how many tokens to take of it.
    batch_size
        Pieces to compute at a time.
    device
        ``cpu`` or ``cuda``.
    dtype
        Of what is not quantized: ``auto`` (float16), ``float16``, ``bfloat16``.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    calib_dataset: str | None = None
    calib_samples: int = 128
    calib_seqlen: int = 2048
    batch_size: int = 1
    device: str = "cpu"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("calib_samples", "calib_seqlen", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is cuda, but torch sees no CUDA device; use cpu")

    @property
    def stored_dtype(self) -> str:
        """Type of what is not quantized."""
        return "float16" if self.dtype == "auto" else self.dtype


@dataclass(frozen=True, kw_only=True)
class CodesSettings(RunSettings):
    """What commands that write codes have to be given besides.

    Parameters
    ----------
    format
        How codes are stored: ``own``, the method's own form, or ``compressed-tensors``.
    """

    format: str = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {self.format!r}")

    @property
    def is_compressed(self) -> bool:
        """Whether codes are stored as the package `compressed-tensors` does."""
        return self.format != FORMATS[0]
