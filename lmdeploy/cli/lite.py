"""``lmdeploy lite``: quantize a model."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.cli.options import positive
from lmdeploy.cli.parser import Parser, print_help_of
from lmdeploy.turbomind.supported import reject_unknown_device

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SHARDED = "checkpoints are read tensor by tensor, so large files need no splitting"


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand, and those below it, to the command line."""
    parser = subparsers.add_parser("lite", help="Quantize a model.", description="Quantize a model.")
    parser.set_defaults(run=print_help_of(parser))
    below = parser.add_subparsers(title="methods", metavar="METHOD")
    _add_auto_awq(below)
    _add_auto_gptq(below)
    _add_smooth_quant(below)
    _add_calibrate(below)
    _add_kv_qparams(below)
    _add_rejected(below, "get_small_sharded_hf", _SHARDED)


def _add_rejected(subparsers: Subparsers, name: str, reason: str) -> None:
    """Add a method of LMDeploy's that is not supported: it reports that, whatever its other arguments."""
    parser = subparsers.add_parser(name, description=f"Not supported: {reason}.")
    assert isinstance(parser, Parser)
    parser.takes_anything = True

    def run(_: argparse.Namespace) -> int:
        print(f"lmdeploy lite {name} is not supported: {reason}", file=sys.stderr)
        return 2

    parser.set_defaults(run=run)


def _add_auto_awq(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "auto_awq",
        "Quantize the weights to 4 or 8 bits with AWQ.",
        "Write a checkpoint whose linear layers are quantized with AWQ (activation-aware weight quantization).",
    )
    add = parser.add_argument
    add(
        "--w-bits",
        type=int,
        default=4,
        metavar="{4,8}",
        help="Bits per weight; 8-bit weights are stored in GPTQ's format.",
    )
    _add_group_size(parser)
    add("--w-sym", action="store_true", help="Symmetric quantization, without zero points.")
    add("--search-scale", action="store_true", help="Search the scales of each layer: slower, more accurate.")
    _add_format(parser)
    parser.set_defaults(run=run_auto_awq)


def _add_group_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--w-group-size",
        type=int,
        metavar="INT",
        help=(
            "Inputs per scale; -1: one scale per row (default: the largest of 128, 64, 32, 16 and 8 "
            "that divides the inputs of every layer)."
        ),
    )


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("own", "compressed-tensors"),
        default="own",
        help=(
            "Storage format: that of the method, or that of the package compressed-tensors, which "
            "transformers and other servers read."
        ),
    )


def _add_auto_gptq(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "auto_gptq",
        "Quantize the weights to 4 or 8 bits with GPTQ.",
        "Write a checkpoint whose linear layers are quantized with GPTQ, symmetrically.",
    )
    add = parser.add_argument
    add("--w-bits", type=int, default=4, metavar="{4,8}", help="Bits per weight.")
    _add_group_size(parser)
    add(
        "--act-order",
        action="store_true",
        help="Quantize inputs with large activations first: more accurate, slower to serve.",
    )
    _add_format(parser)
    parser.set_defaults(run=run_auto_gptq)


def _add_calibrate(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "calibrate",
        "Write statistics of the inputs and outputs of linear layers.",
        "Write inputs_stats.pth and outputs_stats.pth: maximum, minimum and mean of the inputs and outputs of each "
        "linear layer on the calibration text. The quantization methods calibrate by themselves.",
    )
    parser.add_argument(
        "--search-scale", action="store_true", help="Search the ratio of AWQ's scales instead of comparing outputs."
    )
    parser.set_defaults(run=run_calibrate)


def _add_kv_qparams(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "kv_qparams",
        help="Deprecated: a quantized KV cache needs no calibration.",
        description=(
            "Deprecated, writes nothing: the engines compute the scales of an 8- or 4-bit KV cache while they fill it."
        ),
    )
    add = parser.add_argument
    add("work_dir", metavar="WORK_DIR", help="Directory that lmdeploy lite calibrate wrote.")
    add("turbomind_dir", metavar="TURBOMIND_DIR", help="Directory that older releases wrote scales to.")
    add("--kv-bits", type=int, choices=(4, 8), default=8, help="Bits per element of the KV cache.")
    add("--kv-sym", action="store_true", help="Has no effect.")
    add("--num-tp", type=int, metavar="INT", help="Has no effect.")
    add("--tm-params", nargs="*", metavar="KEY=VALUE", help="Has no effect.")
    parser.set_defaults(run=run_kv_qparams)


def _add_smooth_quant(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "smooth_quant",
        "Quantize the weights to 8 bits, for 8-bit activations, with SmoothQuant.",
        "Write a checkpoint whose linear layers are quantized to int8 or fp8, with smoothed activations (SmoothQuant).",
    )
    parser.add_argument(
        "--quant-dtype", type=_quant_dtype, default="int8", metavar="{int8,fp8}", help="Type of the quantized weights."
    )
    parser.add_argument(
        "--search-scale",
        action="store_true",
        help="Search the smoothing strength of each layer: slower, more accurate.",
    )
    _add_format(parser)
    parser.set_defaults(run=run_smooth_quant)


def _quant_dtype(text: str) -> str:
    """Return int8 or fp8; an argparse type."""
    name = {"float8_e4m3fn": "fp8"}.get(text, text)
    if name == "float8_e5m2":
        raise argparse.ArgumentTypeError("float8_e5m2 is not supported: weights are written as float8_e4m3fn (fp8)")
    if name not in ("int8", "fp8"):
        raise argparse.ArgumentTypeError(f"must be int8 or fp8, got {text}")
    return name


def _device(text: str) -> str:
    """Return where to compute; an argparse type."""
    try:
        reject_unknown_device("it", {"npu": "ascend"}.get(text, text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; see docs/internals/new-device.md") from None
    if text == "auto":
        raise argparse.ArgumentTypeError("must be cuda or cpu; without the option it is cuda where there is one")
    return text


def _add_method(subparsers: Subparsers, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    """Add a command with the options that every method has."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{description} Run the same command again to resume an interrupted run.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="Hugging Face directory or repository.")
    add("--work-dir", default="./work_dir", metavar="DIR", help="Output directory.")
    add(
        "--calib-dataset",
        metavar="FILE_OR_NAME",
        help=(
            "Calibration text: a .txt, .json or .jsonl file, a folder of such files, or ptb, "
            "wikitext2, c4 or pileval, which need the package `datasets` (default: texts from this "
            "package and Python's standard library)."
        ),
    )
    add("--calib-samples", type=positive, default=128, metavar="INT", help="Maximum number of calibration samples.")
    add("--calib-seqlen", type=positive, default=2048, metavar="INT", help="Tokens per calibration sample.")
    add("--batch-size", type=positive, default=1, metavar="INT", help="Calibration samples per batch.")
    add(
        "--device",
        type=_device,
        metavar="{cuda,cpu}",
        help="Device that computes (default: cuda if available).",
    )
    add(
        "--dtype",
        choices=("auto", "float16", "bfloat16"),
        default="auto",
        help="Type of tensors that are not quantized; auto: float16.",
    )
    add("--revision", help="Revision of the Hugging Face repository.")
    add("--download-dir", metavar="DIR", help="Download directory.")
    return parser


def run_auto_awq(args: argparse.Namespace) -> int:
    """Quantize; return the exit status."""
    from lmdeploy.lite.auto_awq import AwqSettings, auto_awq

    options = {name: getattr(args, name) for name in ("w_bits", "w_group_size", "w_sym", "search_scale", "format")}
    return _run("auto_awq", args, AwqSettings, auto_awq, options)


def run_auto_gptq(args: argparse.Namespace) -> int:
    """Quantize; return the exit status."""
    from lmdeploy.lite.auto_gptq import GptqSettings, auto_gptq

    options = {name: getattr(args, name) for name in ("w_bits", "w_group_size", "act_order", "format")}
    return _run("auto_gptq", args, GptqSettings, auto_gptq, options)


def run_calibrate(args: argparse.Namespace) -> int:
    """Write statistics; return the exit status."""
    from lmdeploy.lite.calibrate import CalibrationSettings, calibrate

    return _run("calibrate", args, CalibrationSettings, calibrate, {"search_scale": args.search_scale})


def run_kv_qparams(args: argparse.Namespace) -> int:
    """Say that nothing is to be done; return the exit status."""
    for name in ("work_dir", "turbomind_dir"):
        folder = Path(getattr(args, name)).expanduser()
        if not folder.is_dir():
            print(f"lmdeploy lite kv_qparams: {name} {folder} is no folder", file=sys.stderr)
            return 1
    print(f"nothing is to be done: the engines need no scales file; serve with --quant-policy {args.kv_bits}")
    return 0


def run_smooth_quant(args: argparse.Namespace) -> int:
    """Quantize; return the exit status."""
    from lmdeploy.lite.smooth_quant import SmoothQuantSettings, smooth_quant

    options = {"quant_dtype": args.quant_dtype, "search_scale": args.search_scale, "format": args.format}
    return _run("smooth_quant", args, SmoothQuantSettings, smooth_quant, options)


def _run(
    command: str,
    args: argparse.Namespace,
    settings_of: Callable[..., Any],
    method: Callable[..., Path],
    options: dict[str, Any],
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
            **options,
        )
        model_dir = locate_model(args.model, args.revision, args.download_dir)
        with tqdm(unit="layer", desc=command) as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            work_dir = method(model_dir, Path(args.work_dir).expanduser(), settings, progress=show)
    except KeyboardInterrupt:
        print(f"lmdeploy lite {command}: interrupted; the same command continues", file=sys.stderr)
        return 130
    hint = f"; try it with: lmdeploy chat {work_dir}" if (work_dir / "config.json").is_file() else ""
    print(f"wrote {work_dir}{hint}")
    return 0
