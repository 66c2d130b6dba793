"""Settings and work folder of a calibrating command."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

# Settings of every command that reads a calibration text.
FORMATS = ("own", "compressed-tensors")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Text, device and type.

    Raises `ValueError` if a value is out of range.
    """

    # Text (see :func:`lmdeploy.lite.calibration.load_text`), and how many pieces of how many tokens to take of it
    calib_dataset: str | None = None
    calib_samples: int = 128
    calib_seqlen: int = 2048
    batch_size: int = 1  # pieces to compute at a time
    device: str = "cpu"  # ``cpu`` or ``cuda``
    dtype: str = "auto"  # of what is not quantized: ``auto`` (float16), ``float16``, ``bfloat16``

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
class QuantizationSettings(RunSettings):
    """Further settings of commands that write quantized weights.

    ``format``: how codes are stored: ``own``, the method's own form, or ``compressed-tensors``.
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


# The folder of a run: what is finished, and what it takes to continue an interrupted one.
logger = logging.getLogger(__name__)

_CHANGE_NOTHING = ("batch_size", "device")  # but the time


def open_work_dir(work_dir: Path, model_dir: Path, command: str, settings: RunSettings, text: str) -> Path:
    """Return the folder for unfinished work in ``work_dir``, new or left by an interrupted run of the same kind.

    ``text`` is a hash of the calibration text. Raises `FileExistsError` if ``work_dir`` holds a model, or an
    interrupted run of another command or with other settings: names these.
    """
    if (work_dir / "config.json").exists():
        raise FileExistsError(f"{work_dir} holds a model already: choose another --work-dir")
    scratch = work_dir / f".{command}"
    others = sorted(path for path in work_dir.glob(".*/settings.json") if path.parent != scratch)
    if others:
        raise FileExistsError(
            f"{work_dir} holds an interrupted run of {others[0].parent.name[1:]}: continue that, choose another "
            f"--work-dir, or delete {others[0].parent}"
        )
    run = {"model": str(model_dir), "weights": _state_of(model_dir), "text": text, **asdict(settings)}
    run = {key: value for key, value in run.items() if key not in _CHANGE_NOTHING}
    settings_file = scratch / "settings.json"
    if not settings_file.exists():
        scratch.mkdir(parents=True, exist_ok=True)
        unfinished = settings_file.with_suffix(".part")
        unfinished.write_text(json.dumps(run), encoding="utf-8")
        unfinished.replace(settings_file)
        return scratch
    old: dict[str, Any] = json.loads(settings_file.read_text(encoding="utf-8"))
    changed = sorted(key for key in run if old.get(key) != run[key])
    if changed:
        raise FileExistsError(
            f"{work_dir} holds an interrupted run that differs in {', '.join(changed)}: continue it with the same "
            f"settings, choose another --work-dir, or delete {scratch}"
        )
    logger.info("continuing the interrupted run in %s", scratch)
    return scratch


def _state_of(model_dir: Path) -> str:
    files = sorted(model_dir.glob("*.safetensors"))
    return repr([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files])
