"""`lmdeploy chat`: talk to a model in the terminal, in this process."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from lmdeploy.cli.options import add_device, add_model_format, add_tp
from lmdeploy.cli.terminal import HELP, add_sampling_options, read_message

if TYPE_CHECKING:
    from collections.abc import Generator

    from lmdeploy.messages import GenerationConfig, Response
    from lmdeploy.offline.async_engine import AsyncEngine
    from lmdeploy.prompts import Prompt


def add_parser(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "chat", help="talk to a model in the terminal", description=f"Talk to a model: {HELP}."
    )
    parser.add_argument(
        "model_path",
        nargs="?",
        default="",
        help="Hugging Face directory or converted workspace (default: the default model)",
    )
    parser.add_argument(
        "--backend", choices=("turbomind", "pytorch"), default="turbomind", help="engine (default: %(default)s)"
    )
    parser.add_argument("--chat-template", default=None, help="name of a chat template, or a JSON file")
    parser.add_argument("--dtype", default="auto", help="auto, float32, float16 or bfloat16 (default: %(default)s)")
    add_model_format(parser)
    add_device(parser)
    add_tp(parser)
    parser.add_argument(
        "--weight-bits", type=int, choices=(4, 8), help="round the weights while loading: faster, less exact"
    )
    parser.add_argument("--session-len", type=int, default=None, help="most tokens of a conversation")
    parser.add_argument(
        "--cache-max-entry-count",
        type=float,
        default=0.8,
        help="share of free memory for the KV cache (default: %(default)s)",
    )
    add_sampling_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the model and talk until the user leaves."""
    from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig
    from lmdeploy.offline.async_engine import AsyncEngine

    try:
        if args.backend == "pytorch":
            config: TurbomindEngineConfig | PytorchEngineConfig = PytorchEngineConfig(session_len=args.session_len)
        else:
            config = TurbomindEngineConfig(
                dtype=args.dtype,
                model_format=args.model_format,
                weight_bits=args.weight_bits,
                device=args.device or "auto",
                tp=args.tp,
                session_len=args.session_len,
                cache_max_entry_count=args.cache_max_entry_count,
                max_batch_size=1,
            )
        gen_config = GenerationConfig(
            max_new_tokens=args.max_new_tokens,
            do_sample=True,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            repetition_penalty=args.repetition_penalty,
            random_seed=args.seed,
        )
        print("loading the model ...", file=sys.stderr)
        pipe = AsyncEngine(args.model_path, config, args.chat_template)
    except (ValueError, OSError) as error:
        print(f"lmdeploy chat: {error}", file=sys.stderr)
        return 1
    with pipe:
        print(f"{pipe.engine.directory.spec.model_name}: {HELP}")
        talk(pipe, gen_config, args.meta_instruction)
    return 0


def talk(pipe: "AsyncEngine", gen_config: "GenerationConfig", system: str | None) -> None:
    """Answer what the user types, turn by turn in a session of the engine: no turn is computed again."""
    session = pipe.session(gen_config)
    while (text := read_message()) is not None:
        if text == "end":
            session.close()
            session = pipe.session(gen_config)
            print("(new conversation)")
            continue
        prompt: Prompt = text
        if system and not session.history:
            prompt = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        turns = len(session.history)
        _print_answer(session(prompt))
        if len(session.history) == turns:
            print("(the conversation is too long; `end` starts a new one)")
    session.close()


def _print_answer(pieces: "Generator[Response]") -> None:
    """Print an answer as it comes; Ctrl-C stops it."""
    try:
        for piece in pieces:
            print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    finally:
        pieces.close()
    print("\n")
