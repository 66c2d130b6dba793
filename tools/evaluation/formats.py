"""The formats that are measured, and what each may lose.

Bounds are for the default model, of 135 million parameters: larger ones lose less. Each is some 1.5 times what was
measured (docs/reference/quantization.md), so that a mistake in a kernel or a
format passes it and another processor's order of sums does not.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Agreement:
    """Means over all places of all texts that have a next token.

    Attributes
    ----------
    perplexity
        exp of the mean cross-entropy of the token that follows.
    divergence
        Kullback-Leibler divergence from the reference's distribution of the next token, KL(reference || this), in
        nats a token; 0 for the reference itself (Kullback and Leibler, 1951).
    same_top
        Share of places where the most likely token is the reference's.
    places
        How many there were.
    """

    perplexity: float
    divergence: float
    same_top: float
    places: int


@dataclass(frozen=True)
class Bound:
    """What a format may lose.

    Attributes
    ----------
    divergence
        Most KL divergence from float32, in nats a token.
    perplexity
        Most that the perplexity may grow, as a share of float32's.
    """

    divergence: float
    perplexity: float

    def exceeded(self, measured: Agreement, reference: Agreement) -> list[str]:
        """Return what passes the bound, in words; nothing: the format keeps it."""
        growth = measured.perplexity / reference.perplexity - 1
        checks = (("KL divergence", measured.divergence, self.divergence), ("perplexity", growth, self.perplexity))
        return [f"{name} {value:.4g} > {most:.4g}" for name, value, most in checks if not value <= most]


@dataclass(frozen=True)
class Format:
    """A way to store weights or the KV cache.

    Attributes
    ----------
    name
        As users write it.
    settings
        Fields of ``TurbomindEngineConfig``.
    bound
        What it may lose; None: what is measured is only reported.
    lite
        Arguments of ``lmdeploy lite`` that make the checkpoint; empty: the model is used as it is.
    checkpoint
        A checkpoint that is there.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    bound: Bound | None = None
    lite: Sequence[str] = ()
    checkpoint: str = ""

    def model(self, source: str, work_dir: Path) -> str:
        """Return the checkpoint to load, made in ``work_dir`` unless it is there.

        Raises
        ------
        RuntimeError
            ``lmdeploy lite`` failed.
        """
        if not self.lite:
            return self.checkpoint or source
        made = work_dir / "-".join(argument.strip("-") for argument in self.lite)
        command = [sys.executable, "-m", "lmdeploy", "lite", self.lite[0], source, *self.lite[1:]]
        command += ["--work-dir", str(made), *_CALIBRATION]
        if not (made / "config.json").is_file() and subprocess.run(command, check=False).returncode:
            raise RuntimeError(f"{self.name}: this failed: {' '.join(command)}")
        return str(made)


_CALIBRATION = ("--calib-samples", "4", "--calib-seqlen", "512")

REFERENCE = Format("float32", {"dtype": "float32"})
# What the engine does by itself, from any checkpoint: weights; the KV cache, alongside weights in float32; both.
BUILT_IN = (
    Format("bfloat16", {"dtype": "bfloat16"}, Bound(0.001, 0.005)),
    Format("float16", {"dtype": "float16"}, Bound(0.001, 0.005)),
    Format("`weight_bits` 8", {"dtype": "float32", "weight_bits": 8}, Bound(0.008, 0.015)),
    Format("`weight_bits` 4", {"dtype": "float32", "weight_bits": 4}, Bound(0.4, 0.3)),
    Format("`quant_policy` 8", {"dtype": "float32", "quant_policy": 8}, Bound(0.001, 0.003)),
    Format("`quant_policy` 4", {"dtype": "float32", "quant_policy": 4}, Bound(0.18, 0.17)),
    Format(
        "`weight_bits` 8, `quant_policy` 8",
        {"dtype": "float32", "weight_bits": 8, "quant_policy": 8},
        Bound(0.008, 0.015),
    ),
)
# What `lmdeploy lite` makes of it.
MADE = (
    Format("int8, `smooth_quant`", bound=Bound(0.008, 0.01), lite=("smooth_quant", "--quant-dtype", "int8")),
    Format("fp8, `smooth_quant`", bound=Bound(0.02, 0.03), lite=("smooth_quant", "--quant-dtype", "fp8")),
    Format("AWQ, groups of 64", bound=Bound(0.22, 0.21), lite=("auto_awq", "--w-group-size", "64")),
    Format("AWQ, groups of 32", bound=Bound(0.15, 0.14), lite=("auto_awq", "--w-group-size", "32")),
)


def built_in(backend: str) -> list[Format]:
    """Return what an engine makes of any checkpoint; PyTorch's rounds no weights."""
    return [one for one in BUILT_IN if backend == "turbomind" or "weight_bits" not in one.settings]
