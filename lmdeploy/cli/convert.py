"""`lmdeploy convert`: write a Triton model repository for a checkpoint."""

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.cli.options import NO_REMOTE_CODE, SETTINGS, add_setting
from lmdeploy.cli.parser import DeprecatedOption, RejectedOption

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: "Subparsers") -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "convert",
        help="Write a Triton model repository for a checkpoint.",
        description=(
            "Write a Triton model repository that serves a Hugging Face checkpoint. The repository "
            "refers to the weights in place, unless --copy is given. Legacy form: lmdeploy convert "
            "MODEL_NAME MODEL_PATH."
        ),
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help="[MODEL_NAME] MODEL_PATH: Hugging Face directory or repository, or GGUF file.",
    )
    parser.add_argument(
        "--copy",
        action="store_true",
        help="Copy the weights into the repository, so that it serves on any machine.",
    )
    parser.add_argument("--dst-path", default="workspace", help="Output directory (default: %(default)s).")
    parser.add_argument(
        "--model-name",
        help=(
            "Name of the model for clients; Triton clients of LMDeploy up to 0.5.1 use it as the name "
            "of a chat template (default: the directory's name)."
        ),
    )
    parser.add_argument("--chat-template", help="Name of a built-in chat template (see lmdeploy list), or JSON file.")
    for name in ("dtype", "model_format", "tp", "revision", "download_dir"):
        add_setting(parser, SETTINGS[name])
    only = "the tokenizer alongside the model is the one used; copy the file there"
    add = partial(parser.add_argument, metavar="...")
    add("--tokenizer-path", action=RejectedOption, reason=only)
    found = "the size is read from the checkpoint"
    add("--group-size", type=int, default=0, action=RejectedOption, neutral=(0, 128), reason=found)
    add("--quant-path", action=RejectedOption, reason="quantized weights are read from the model's own directory")
    add("--trust-remote-code", nargs=0, action=DeprecatedOption, word=NO_REMOTE_CODE, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert; return the exit status."""
    from lmdeploy.messages import TurbomindEngineConfig
    from lmdeploy.model import MODELS
    from lmdeploy.paths import locate_model
    from lmdeploy.turbomind.convert import convert
    from lmdeploy.turbomind.supported import reject_unsupported_engine

    if len(args.model) > 2:
        print(f"lmdeploy convert: expected [MODEL_NAME] MODEL_PATH, got {len(args.model)} names", file=sys.stderr)
        return 2
    old_name = args.model[0] if len(args.model) == 2 else None
    # In the old form the name said which chat template the model has.
    old_template = old_name if old_name in MODELS else None
    dtype, tp = args.dtype or "auto", 1 if args.tp is None else args.tp
    reject_unsupported_engine(TurbomindEngineConfig(dtype=dtype, model_format=args.model_format, tp=tp))
    target = convert(
        str(locate_model(args.model[-1], args.revision, args.download_dir)),
        args.dst_path,
        model_name=args.model_name or old_name,
        chat_template=args.chat_template or old_template,
        dtype=dtype,
        model_format=args.model_format,
        tp=tp,
        copy=args.copy,
    )
    print(f"wrote {target}; serve it with: lmdeploy serve api_server {shlex.quote(str(target))}, or Triton alone with:")
    print(_triton_command(target))
    return 0


def _triton_command(repository: Path) -> str:
    from lmdeploy.serve.errors import TritonStartError
    from lmdeploy.serve.installation import OUR_BACKEND, backend_directory, find_tritonserver, shell_command

    try:
        found = find_tritonserver()
        return shell_command(found, backend_directory(found, [OUR_BACKEND]), repository)
    except TritonStartError as error:
        return f"(not here: {error})"
