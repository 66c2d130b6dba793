"""``lmdeploy lite``: make a model smaller."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.cli.options import positive
from lmdeploy.cli.parser import Parser, Refuse, print_help_of

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_NOT_THERE = {
    "auto_gptq": "GPTQ checkpoints are served, but not made here yet; auto_awq makes 4-bit weights",
    "calibrate": "auto_awq and smooth_quant calibrate by themselves",
    "kv_qparams": "an 8- or 4-bit cache needs no parameters; serve with --quant-policy 8 or 4",
    "get_small_sharded_hf": "checkpoints are read tensor by tensor, so large files need no splitting",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand, and those below it, to the command line."""
    parser = subparsers.add_parser("lite", help="Make a model smaller.", description="Make a model smaller.")
    parser.set_defaults(run=print_help_of(parser))
    below = parser.add_subparsers(title="how", metavar="METHOD")
    _add_auto_awq(below)
    _add_smooth_quant(below)
    for name, reason in _NOT_THERE.items():
        _add_refused(below, name, reason)


def _add_refused(subparsers: Subparsers, name: str, reason: str) -> None:
    """Add a method of LMDeploy's that is not there, which says so whatever else it is told."""
    parser = subparsers.add_parser(name, description=f"Not there: {reason}.")
    assert isinstance(parser, Parser)
    parser.takes_anything = True

    def run(_: argparse.Namespace) -> int:
        print(f"lmdeploy lite {name} is not there: {reason}", file=sys.stderr)
        return 2

    parser.set_defaults(run=run)


def _add_auto_awq(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "auto_awq",
        "Quantize the weights to 4 bits with AWQ.",
        "Write a checkpoint whose linear layers are quantized to 4 bits with AWQ (activation-aware weight "
        "quantization).",
    )
    add = parser.add_argument
    add("--w-bits", type=int, default=4, metavar="INT", help="bits of a weight; AWQ's format has 4")
    add("--w-group-size", type=int, default=128, metavar="INT", help="inputs that share a scale; -1: a whole row")
    add("--w-sym", action="store_true", help="the middle code is zero, instead of a zero point for each group")
    add("--search-scale", action="store_true", help="search the factors of each layer: slower, more exact")
    parser.set_defaults(run=run_auto_awq)


def _add_smooth_quant(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "smooth_quant",
        "Quantize the weights to 8 bits, for 8-bit activations, with SmoothQuant.",
        "Write a checkpoint whose linear layers are quantized to 8 bits, integers or floats, and whose activations can "
        "be (SmoothQuant).",
    )
    parser.add_argument(
        "--quant-dtype", type=_quant_dtype, default="int8", metavar="{int8,fp8}", help="type of the weights"
    )
    reason = "smooth_quant has one factor for all layers, and searches none"
    parser.add_argument("--search-scale", nargs=0, action=Refuse, reason=reason, help=argparse.SUPPRESS)
    parser.set_defaults(run=run_smooth_quant)


def _quant_dtype(text: str) -> str:
    """Return int8 or fp8; an argparse type."""
    name = {"float8_e4m3fn": "fp8"}.get(text, text)
    if name == "float8_e5m2":
        raise argparse.ArgumentTypeError("float8_e5m2 is not supported: weights are written as float8_e4m3fn (fp8)")
    if name not in ("int8", "fp8"):
        raise argparse.ArgumentTypeError(f"must be int8 or fp8, got {text}")
    return name


def _add_method(subparsers: Subparsers, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    """Add a command with the options that every method has."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{description} An interrupted run continues when it is started again with the same settings.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a Hugging Face directory or repository")
    add("--work-dir", default="./work_dir", metavar="DIR", help="folder of the new checkpoint")
    add(
        "--calib-dataset",
        metavar="FILE_OR_NAME",
        help="text to calibrate with: a .txt, .json or .jsonl file, or ptb, wikitext2 or c4, which need the package "
        "`datasets`; without it a text that comes along is used",
    )
    add("--calib-samples", type=positive, default=128, metavar="INT", help="most pieces of text to calibrate with")
    add("--calib-seqlen", type=positive, default=2048, metavar="INT", help="tokens of a piece")
    add("--batch-size", type=positive, default=1, metavar="INT", help="pieces computed at a time")
    add(
        "--device",
        choices=("cuda", "cpu"),
        metavar="{cuda,cpu}",
        help="where to compute; without it cuda where there is one",
    )
    add(
        "--dtype",
        choices=("auto", "float16", "bfloat16"),
        default="auto",
        help="type of what is not quantized; auto: float16",
    )
    add("--revision", help="version of a Hugging Face repository")
    add("--download-dir", metavar="DIR", help="where to download it to")
    return parser


def run_auto_awq(args: argparse.Namespace) -> int:
    """Quantize; return the exit status."""
    from lmdeploy.lite.auto_awq import AwqSettings, auto_awq

    own = {name: getattr(args, name) for name in ("w_bits", "w_group_size", "w_sym", "search_scale")}
    return _run("auto_awq", args, AwqSettings, auto_awq, own)


def run_smooth_quant(args: argparse.Namespace) -> int:
    """Quantize; return the exit status."""
    from lmdeploy.lite.smooth_quant import SmoothQuantSettings, smooth_quant

    return _run("smooth_quant", args, SmoothQuantSettings, smooth_quant, {"quant_dtype": args.quant_dtype})


def _run(
    command: str,
    args: argparse.Namespace,
    settings_of: Callable[..., Any],
    method: Callable[..., Path],
    own: dict[str, Any],
) -> int:
    """Run a method with the common settings and its own."""
    import torch
    from tqdm import tqdm

    from lmdeploy.paths import locate_model

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        settings = settings_of(
            calib_dataset=args.calib_dataset,
            calib_samples=args.calib_samples,
            calib_seqlen=args.calib_seqlen,
            batch_size=args.batch_size,
            device=args.device or ("cuda" if torch.cuda.is_available() else "cpu"),
            dtype=args.dtype,
            **own,
        )
        model_dir = locate_model(args.model, args.revision, args.download_dir)
        with tqdm(unit="layer", desc="quantizing") as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            work_dir = method(model_dir, Path(args.work_dir).expanduser(), settings, progress=show)
    except (OSError, ValueError) as error:
        print(f"lmdeploy lite {command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"lmdeploy lite {command}: interrupted; the same command continues", file=sys.stderr)
        return 130
    print(f"wrote {work_dir}; try it with: lmdeploy chat {work_dir}")
    return 0
