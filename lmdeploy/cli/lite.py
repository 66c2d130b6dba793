"""``lmdeploy lite``: make a model smaller."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.cli.options import positive

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand, and those below it, to the command line."""
    parser = subparsers.add_parser("lite", help="Make a model smaller.", description="Make a model smaller.")
    below = parser.add_subparsers(title="how", metavar="METHOD", required=True)
    _add_auto_awq(below)


def _add_auto_awq(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "auto_awq",
        help="Quantize the weights to 4 bits with AWQ.",
        description="Write a checkpoint whose linear layers are quantized to 4 bits with AWQ (activation-aware weight "
        "quantization). An interrupted run continues when it is started again with the same settings.",
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
    add("--w-bits", type=int, default=4, metavar="INT", help="bits of a weight; AWQ's format has 4")
    add("--w-group-size", type=int, default=128, metavar="INT", help="inputs that share a scale; -1: a whole row")
    add("--w-sym", action="store_true", help="the middle code is zero, instead of a zero point for each group")
    add("--search-scale", action="store_true", help="search the factors of each layer: slower, more exact")
    add("--device", choices=("cuda", "cpu"), help="where to compute; without it cuda where there is one")
    add(
        "--dtype",
        choices=("auto", "float16", "bfloat16"),
        default="auto",
        help="type of what is not quantized; auto: float16",
    )
    add("--revision", help="version of a Hugging Face repository")
    add("--download-dir", metavar="DIR", help="where to download it to")
    parser.set_defaults(run=run_auto_awq)


def run_auto_awq(args: argparse.Namespace) -> int:
    """Quantize; return the exit status."""
    import torch
    from tqdm import tqdm

    from lmdeploy.lite.auto_awq import AwqSettings, auto_awq
    from lmdeploy.paths import locate_model

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        settings = AwqSettings(
            w_bits=args.w_bits,
            w_group_size=args.w_group_size,
            w_sym=args.w_sym,
            calib_dataset=args.calib_dataset,
            calib_samples=args.calib_samples,
            calib_seqlen=args.calib_seqlen,
            batch_size=args.batch_size,
            search_scale=args.search_scale,
            device=args.device or ("cuda" if torch.cuda.is_available() else "cpu"),
            dtype=args.dtype,
        )
        model_dir = locate_model(args.model, args.revision, args.download_dir)
        with tqdm(unit="layer", desc="quantizing") as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            work_dir = auto_awq(model_dir, Path(args.work_dir).expanduser(), settings, progress=show)
    except (OSError, ValueError) as error:
        print(f"lmdeploy lite auto_awq: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lmdeploy lite auto_awq: interrupted; the same command continues", file=sys.stderr)
        return 130
    print(f"wrote {work_dir}; try it with: lmdeploy chat {work_dir}")
    return 0
