"""``lmdeploy lite``: make a model smaller."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.cli.options import positive
from lmdeploy.cli.parser import Parser, print_help_of
from lmdeploy.turbomind.supported import refuse_unknown_device

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SHARDED = "checkpoints are read tensor by tensor, so large files need no splitting"


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand, and those below it, to the command line."""
    parser = subparsers.add_parser("lite", help="Make a model smaller.", description="Make a model smaller.")
    parser.set_defaults(run=print_help_of(parser))
    below = parser.add_subparsers(title="how", metavar="METHOD")
    _add_auto_awq(below)
    _add_auto_gptq(below)
    _add_smooth_quant(below)
    _add_calibrate(below)
    _add_kv_qparams(below)
    _add_refused(below, "get_small_sharded_hf", _SHARDED)


def _add_refused(subparsers: Subparsers, name: str, reason: str) -> None:
    """Add a method of LMDeploy's that is not there, which says so whatever else it is given."""
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
        "Quantize the weights to 4 or 8 bits with AWQ.",
        "Write a checkpoint whose linear layers are quantized with AWQ (activation-aware weight quantization).",
    )
    add = parser.add_argument
    add("--w-bits", type=int, default=4, metavar="{4,8}", help="bits of a weight; 8 are stored in GPTQ's format")
    _add_group_size(parser)
    add("--w-sym", action="store_true", help="the middle code is zero, instead of a zero point for each group")
    add("--search-scale", action="store_true", help="search the factors of each layer: slower, more exact")
    _add_format(parser)
    parser.set_defaults(run=run_auto_awq)


def _add_group_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--w-group-size",
        type=int,
        metavar="INT",
        help="inputs that share a scale; -1: a whole row; without it the largest of 128, 64, 32, 16, 8 that divides "
        "the inputs of every layer",
    )


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("own", "compressed-tensors"),
        default="own",
        help="how the weights are stored: in the form of the method, or in that of the package compressed-tensors, "
        "which transformers and other servers read",
    )


def _add_auto_gptq(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "auto_gptq",
        "Quantize the weights to 4 or 8 bits with GPTQ.",
        "Write a checkpoint whose linear layers are quantized with GPTQ, the middle code being zero.",
    )
    add = parser.add_argument
    add("--w-bits", type=int, default=4, metavar="{4,8}", help="bits of a weight")
    _add_group_size(parser)
    add("--act-order", action="store_true", help="round inputs that carry much first: more exact, slower to serve")
    _add_format(parser)
    parser.set_defaults(run=run_auto_gptq)


def _add_calibrate(subparsers: Subparsers) -> None:
    parser = _add_method(
        subparsers,
        "calibrate",
        "Write statistics of what linear layers are given and give.",
        "Write inputs_stats.pth and outputs_stats.pth: largest, smallest and mean numbers of the inputs and outputs of "
        "each linear layer on a text. The methods of quantization calibrate by themselves.",
    )
    parser.add_argument(
        "--search-scale", action="store_true", help="search the ratio of AWQ's scales, instead of looking at outputs"
    )
    parser.set_defaults(run=run_calibrate)


def _add_kv_qparams(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "kv_qparams",
        help="Nothing: a smaller cache needs no scales.",
        description="Kept for old commands. The engines find the scales of an 8- or 4-bit cache while they fill it, so "
        "nothing is written.",
    )
    add = parser.add_argument
    add("work_dir", metavar="WORK_DIR", help="folder that lmdeploy lite calibrate wrote")
    add("turbomind_dir", metavar="TURBOMIND_DIR", help="folder that the scales once were written to")
    add("--kv-bits", type=int, choices=(4, 8), default=8, help="bits of a number in the cache")
    add("--kv-sym", action="store_true", help="not used")
    add("--num-tp", type=int, metavar="INT", help="not used")
    add("--tm-params", nargs="*", metavar="KEY=VALUE", help="not used")
    parser.set_defaults(run=run_kv_qparams)


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
    parser.add_argument(
        "--search-scale", action="store_true", help="search the strength of each layer: slower, more exact"
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
        refuse_unknown_device("it", {"npu": "ascend"}.get(text, text))
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
        description=f"{description} An interrupted run continues when it is started again with the same settings.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a Hugging Face directory or repository")
    add("--work-dir", default="./work_dir", metavar="DIR", help="folder of the new checkpoint")
    add(
        "--calib-dataset",
        metavar="FILE_OR_NAME",
        help="text to calibrate with: a .txt, .json or .jsonl file, a folder of such files, or ptb, wikitext2, c4 or "
        "pileval, which need the package `datasets`; without it texts that come along and with Python are used",
    )
    add("--calib-samples", type=positive, default=128, metavar="INT", help="most pieces of text to calibrate with")
    add("--calib-seqlen", type=positive, default=2048, metavar="INT", help="tokens of a piece")
    add("--batch-size", type=positive, default=1, metavar="INT", help="pieces computed at a time")
    add(
        "--device",
        type=_device,
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

    own = {name: getattr(args, name) for name in ("w_bits", "w_group_size", "w_sym", "search_scale", "format")}
    return _run("auto_awq", args, AwqSettings, auto_awq, own)


def run_auto_gptq(args: argparse.Namespace) -> int:
    """Quantize; return the exit status."""
    from lmdeploy.lite.auto_gptq import GptqSettings, auto_gptq

    own = {name: getattr(args, name) for name in ("w_bits", "w_group_size", "act_order", "format")}
    return _run("auto_gptq", args, GptqSettings, auto_gptq, own)


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

    own = {"quant_dtype": args.quant_dtype, "search_scale": args.search_scale, "format": args.format}
    return _run("smooth_quant", args, SmoothQuantSettings, smooth_quant, own)


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
        with tqdm(unit="layer", desc=command) as bar:

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
    hint = f"; try it with: lmdeploy chat {work_dir}" if (work_dir / "config.json").is_file() else ""
    print(f"wrote {work_dir}{hint}")
    return 0
