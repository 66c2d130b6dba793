"""``lmdeploy lite``: quantize a model."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.cli.options import add_fields, device
from lmdeploy.cli.parser import Parser, print_help_of
from lmdeploy.fields.field import fields_of
from lmdeploy.lite.settings import AwqSettings, CalibrationSettings, GptqSettings, SmoothQuantSettings

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

# Settings, summary and description of each method.
_METHODS: dict[str, tuple[type, str, str]] = {
    "auto_awq": (
        AwqSettings,
        "Quantize the weights to 4 or 8 bits with AWQ.",
        "Write a checkpoint whose linear layers are quantized with AWQ (activation-aware weight quantization).",
    ),
    "auto_gptq": (
        GptqSettings,
        "Quantize the weights to 4 or 8 bits with GPTQ.",
        "Write a checkpoint whose linear layers are quantized with GPTQ, symmetrically.",
    ),
    "smooth_quant": (
        SmoothQuantSettings,
        "Quantize the weights to 8 bits, for 8-bit activations, with SmoothQuant.",
        "Write a checkpoint whose linear layers are quantized to int8 or fp8, with smoothed activations (SmoothQuant).",
    ),
    "calibrate": (
        CalibrationSettings,
        "Write statistics of the inputs and outputs of linear layers.",
        "Write inputs_stats.pth and outputs_stats.pth: maximum, minimum and mean of the inputs and outputs of each "
        "linear layer on the calibration text. The quantization methods calibrate by themselves.",
    ),
}
_SHARDED = "checkpoints are read tensor by tensor, so large files need no splitting"


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand, and those below it, to the command line."""
    parser = subparsers.add_parser("lite", help="Quantize a model.", description="Quantize a model.")
    parser.set_defaults(run=print_help_of(parser))
    below = parser.add_subparsers(title="methods", metavar="METHOD")
    for name, command in _METHODS.items():
        _add_method(below, name, *command)
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
    device({"npu": "ascend"}.get(text, text))
    if text == "auto":
        raise argparse.ArgumentTypeError("must be cuda or cpu; without the option it is cuda where there is one")
    return text


def _add_method(subparsers: Subparsers, name: str, table: type, summary: str, description: str) -> None:
    """Add a command with the options that its settings have."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=f"{description} Run the same command again to resume an interrupted run.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="Hugging Face directory or repository.")
    add("--work-dir", default="./work_dir", metavar="DIR", help="Output directory (default: %(default)s).")
    add_fields(parser, table, *(info.name for info in fields_of(table)))
    if table is SmoothQuantSettings:
        help_text = "Type of the quantized weights (default: %(default)s)."
        add("--quant-dtype", type=_quant_dtype, default="int8", metavar="{int8,fp8}", help=help_text)
    add("--device", type=_device, metavar="{cuda,cpu}", help="Device that computes (default: cuda if available).")
    add("--revision", help="Revision of the Hugging Face repository.")
    add("--download-dir", metavar="DIR", help="Download directory.")
    parser.set_defaults(run=partial(_run, name, table))


def run_kv_qparams(args: argparse.Namespace) -> int:
    """Say that nothing is to be done; return the exit status."""
    for name in ("work_dir", "turbomind_dir"):
        folder = Path(getattr(args, name)).expanduser()
        if not folder.is_dir():
            print(f"lmdeploy lite kv_qparams: {name} {folder} is no folder", file=sys.stderr)
            return 1
    print(f"nothing is to be done: the engines need no scales file; serve with --quant-policy {args.kv_bits}")
    return 0


def _run(command: str, table: Any, args: argparse.Namespace) -> int:
    """Run a method; return the exit status."""
    import torch
    from tqdm import tqdm

    from lmdeploy.paths import locate_model

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    method = getattr(import_module(f"lmdeploy.lite.{command}"), command)
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(table)}
    given["device"] = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        settings = table(**given)
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
