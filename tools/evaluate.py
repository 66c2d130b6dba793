"""Accuracy of each format of weights and of the KV cache, against the same model in float32.

``python tools/evaluate.py MODEL`` writes a table of Markdown: perplexity of texts, and how far the next token's
distribution is from float32's. It ends with 1 if a format loses more than its bound. ``--help`` lists the flags.
Accuracy on tasks is lm-eval's (docs/guides/evaluation.md).
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from lmdeploy import pipeline
from lmdeploy.paths import default_model_dir, locate_model
from tools.bench import arguments as flags
from tools.bench.report import ignore, machine, progress_bar

TEXTS = Path(__file__).with_name("texts.txt")  # written for this and printed nowhere else
BETWEEN = "\n----\n"  # in the file
_MAX_TOKENS = 512  # of a piece of text
_CALIBRATION = ("--calib-samples", "4", "--calib-seqlen", "512")


@dataclass(frozen=True)
class Agreement:
    """Means over all tokens of all texts that have a next token."""

    perplexity: float  # exp of the mean cross-entropy of the token that follows
    # Kullback-Leibler divergence from the reference's distribution of the next token, KL(reference || this), in nats a
    # token; 0 for the reference itself (Kullback and Leibler, 1951)
    divergence: float
    same_top: float  # share of tokens where the most likely token is the reference's
    tokens: int  # how many there were


@dataclass(frozen=True)
class Bound:
    """Bounds of the loss of a format."""

    divergence: float  # most KL divergence from float32, in nats a token
    perplexity: float  # most that the perplexity may grow, as a share of float32's

    def exceeded(self, measured: Agreement, reference: Agreement) -> list[str]:
        """Return the losses beyond the bounds, in words; none: the format keeps them."""
        growth = measured.perplexity / reference.perplexity - 1
        checks = (("KL divergence", measured.divergence, self.divergence), ("perplexity", growth, self.perplexity))
        return [f"{name} {value:.4g} > {maximum:.4g}" for name, value, maximum in checks if not value <= maximum]


@dataclass(frozen=True)
class Format:
    """A way to store weights or the KV cache."""

    name: str  # as users write it
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of ``TurbomindEngineConfig``
    bound: Bound | None = None  # what it may lose; None: what is measured is only reported
    # Arguments of ``lmdeploy lite`` that make the checkpoint; empty: the model is used as it is
    lite: Sequence[str] = ()
    checkpoint: str = ""  # a checkpoint that is there

    def model(self, source: str, work_dir: Path) -> str:
        """Return the checkpoint to load, made in ``work_dir`` unless it is there.

        Raises `RuntimeError` if ``lmdeploy lite`` failed.
        """
        if not self.lite:
            return self.checkpoint or source
        made = work_dir / "-".join(argument.strip("-") for argument in self.lite)
        command = [sys.executable, "-m", "lmdeploy", "lite", self.lite[0], source, *self.lite[1:]]
        command += ["--work-dir", str(made), *_CALIBRATION]
        if not (made / "config.json").is_file() and subprocess.run(command, check=False).returncode:
            raise RuntimeError(f"{self.name}: this failed: {' '.join(command)}")
        return str(made)


# Bounds are for the default model, of 135 million parameters: larger ones lose less. Each is some 1.5 times what was
# measured (docs/reference/quantization.md), so that a mistake in a kernel or a format passes it and another processor's
# order of sums does not.
REFERENCE = Format("float32", {"dtype": "float32"})
# Quantization by the engine itself, from any checkpoint: weights; the KV cache, alongside weights in float32; both.
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
# Quantization by `lmdeploy lite`.
MADE = (
    Format("int8, `smooth_quant`", bound=Bound(0.008, 0.01), lite=("smooth_quant", "--quant-dtype", "int8")),
    Format("fp8, `smooth_quant`", bound=Bound(0.02, 0.03), lite=("smooth_quant", "--quant-dtype", "fp8")),
    Format("AWQ, groups of 64", bound=Bound(0.22, 0.21), lite=("auto_awq", "--w-group-size", "64")),
    Format("AWQ, groups of 32", bound=Bound(0.15, 0.14), lite=("auto_awq", "--w-group-size", "32")),
)


def built_in(backend: str) -> list[Format]:
    """Return the formats that an engine makes of any checkpoint; PyTorch's rounds no weights."""
    return [one for one in BUILT_IN if backend == "turbomind" or "weight_bits" not in one.settings]


def read_pieces(path: Path = TEXTS) -> list[str]:
    """Return the pieces of a file, divided by lines of four dashes; raise `ValueError` if there is no text in it."""
    pieces = [piece.strip() for piece in path.read_text(encoding="utf-8").split(BETWEEN)]
    if not any(pieces):
        raise ValueError(f"{path} holds no text; expected pieces of text, a line of four dashes between them")
    return [piece for piece in pieces if piece]


def log_probabilities(logits: torch.Tensor, length: int) -> torch.Tensor:
    """Return the log-probabilities ``[length - 1, vocab]`` of what follows each token of a text but its last.

    ``logits``: ``[tokens, vocab]``, with rows for at least ``length`` tokens.
    """
    return torch.log_softmax(logits[: length - 1].float(), dim=-1)


def compare(
    texts: Sequence[Sequence[int]], reference: Iterable[torch.Tensor], measured: Iterable[torch.Tensor]
) -> Agreement:
    """Return how far ``measured`` is from ``reference``.

    ``texts``: token ids, at least two a text. ``reference``, ``measured``: for each text what :func:`log_probabilities`
    returns.
    """
    divergence = loss = 0.0
    same = tokens = 0
    for ids, expected, got in zip(texts, reference, measured, strict=True):
        divergence += torch.sum(expected.exp() * (expected - got), dtype=torch.float64).item()
        loss -= got.gather(1, torch.tensor(ids[1:])[:, None]).sum(dtype=torch.float64).item()
        same += int((expected.argmax(-1) == got.argmax(-1)).sum())
        tokens += len(ids) - 1
    return Agreement(math.exp(loss / tokens), divergence / tokens, same / tokens, tokens)


class Evaluation:
    """Formats of one model, one after the other; the first one measured is the reference."""

    def __init__(self, pieces: Sequence[str], backend: Literal["turbomind", "pytorch"] = "turbomind") -> None:
        self._backend = backend  # the engine: ``turbomind`` or ``pytorch``
        self._pieces = list(pieces)
        self._texts: list[list[int]] = []
        self._reference: list[torch.Tensor] = []

    @property
    def reference(self) -> Agreement:
        """Agreement of the reference with itself, which has its perplexity."""
        return compare(self._texts, self._reference, self._reference)

    @property
    def steps(self) -> int:
        """How often `measure` reports: for the model, and each text."""
        return 1 + len(self._pieces)

    def measure(self, model_path: str, chosen: Format, advance: Callable[[], None] = ignore) -> Agreement:
        """Load a model in a format and return what it says; ``advance`` is called after each step."""
        settings = {"cache_max_entry_count": 0.2, "session_len": 1024, **chosen.settings}
        with pipeline(model_path, backend=self._backend, **settings) as pipe:
            self._texts = self._texts or [pipe.tokenizer.encode(piece)[:_MAX_TOKENS] for piece in self._pieces]
            advance()
            scored = []
            for ids in self._texts:
                scored.append(log_probabilities(pipe.get_logits(ids)[0], len(ids)))
                advance()
        self._reference = self._reference or scored
        return compare(self._texts, self._reference, scored)


def make_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description="Measure what formats of weights and of the KV cache lose.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("model_path", nargs="?", default=str(default_model_dir()), help="Hugging Face directory, not quantized")
    add("--backend", choices=("turbomind", "pytorch"), default="turbomind", help="which engine")
    add("--text", type=Path, default=TEXTS, metavar="FILE", help="pieces of text, a line of four dashes between them")
    add("--lite", action="store_true", help="also what `lmdeploy lite` makes of the model (takes minutes)")
    add("--work-dir", type=Path, metavar="DIR", help="where these checkpoints are kept; without it, nowhere")
    add(
        "--checkpoint",
        type=named_checkpoint,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="also this checkpoint of the same model (AWQ, GPTQ, fp8, GGUF, ...); may be given several times",
    )
    add("--json", type=Path, metavar="FILE", help="write what was measured to this file too")
    return parser


def named_checkpoint(text: str) -> Format:
    """Read ``NAME=PATH``; an argparse type."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"expected NAME=PATH, got {text}")
    return Format(name, checkpoint=path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 1 if a format loses more than its bound.

    Raises `ValueError` if a model, checkpoint or text is not there.
    """
    args = make_parser().parse_args(arguments)
    for path in (args.model_path, *(one.checkpoint for one in args.checkpoint)):
        locate_model(path)  # before anything takes minutes
    evaluation = Evaluation(read_pieces(args.text), args.backend)
    measured: dict[str, Agreement] = {}
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        for chosen in (REFERENCE, *built_in(args.backend), *(MADE if args.lite else ()), *args.checkpoint):
            with progress_bar(evaluation.steps, "step", title=chosen.name) as advance:
                path = chosen.model(args.model_path, args.work_dir or Path(scratch))
                one = measured[chosen.name] = evaluation.measure(path, chosen, advance)
            if len(measured) == 1:
                print(f"{Path(args.model_path).name}, {one.tokens} tokens scored; {machine()}\n")
                print("| format | perplexity | KL, nats | same top token |\n| --- | ---: | ---: | ---: |")
            print(row(chosen.name, one, measured[REFERENCE.name]), flush=True)
            if chosen.bound is not None:
                passed = chosen.bound.exceeded(one, evaluation.reference)
                failures += [f"{chosen.name}: {text}" for text in passed]
    if args.json is not None:
        args.json.write_text(json.dumps({name: asdict(one) for name, one in measured.items()}, indent=1))
    if failures:
        sys.exit("\n".join(["", "More is lost than may be:", *failures]))


def row(name: str, one: Agreement, first: Agreement) -> str:
    """Return the line of a format; ``first`` is the reference."""
    growth = "" if one is first else f" ({one.perplexity / first.perplexity - 1:+.2%})"
    return f"| {name} | {one.perplexity:.2f}{growth} | {one.divergence:.5f} | {one.same_top:.0%} |"


if __name__ == "__main__":
    flags.run(main)
