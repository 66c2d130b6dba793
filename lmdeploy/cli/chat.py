"""`lmdeploy chat`: talk to a model in the terminal, in this process."""

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from lmdeploy.cli.options import add_engine_options, add_generation_config, add_model_options, engine_config
from lmdeploy.cli.parser import DeprecatedOption
from lmdeploy.cli.terminal import HELP, SAMPLING_DEFAULTS, add_sampling_options, given_sampling, talk

if TYPE_CHECKING:
    from collections.abc import Generator

    from lmdeploy.messages import GenerationConfig, Response
    from lmdeploy.offline.async_engine import AsyncEngine
    from lmdeploy.prompts import Prompt


def add_parser(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "chat", help="Chat with a model in the terminal.", description=f"Chat with a model in this process: {HELP}."
    )
    parser.add_argument(
        "model_path",
        nargs="*",
        action=_ModelPath,
        metavar="MODEL",
        help="Hugging Face directory or repository, GGUF file, or converted workspace (default: the default model).",
    )
    add_engine_options(parser)
    add_model_options(parser)
    add_generation_config(parser)
    add_sampling_options(parser, unless=", or what the model recommends")
    mention = partial(parser.add_argument, action=DeprecatedOption, help=argparse.SUPPRESS)
    gone = "tokenizer-path accel max-alloc log-file adapter debug use-fast-tokenizer"
    for name in gone.split():
        mention(f"--{name}", word="has no effect: it was an option of a command that is gone")
    mention("--max-session-len", type=int, becomes="session_len", word="is old: it is called --session-len")
    mention("--session-id", type=int, word="has no effect: each conversation gets its own number")
    mention("--stream-output", word="has no effect: responses always appear as they come")
    parser.set_defaults(run=run)


class _ModelPath(argparse.Action):
    """MODEL; or, as up to LMDeploy 0.5.0, the engine and then MODEL."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Keep the model; ``torch`` before it asks for the PyTorch engine."""
        engine, model = values[:-1], values[-1] if values else ""
        if engine == ["torch"]:
            namespace.backend = "pytorch"
        elif engine not in ([], ["turbomind"]):
            parser.error(f"expected one MODEL, got {' '.join(values)}")
        namespace.model_path = model


def run(args: argparse.Namespace) -> int:
    """Load the model and talk until the user leaves."""
    from lmdeploy.messages import GenerationConfig
    from lmdeploy.offline.async_engine import AsyncEngine

    backend = "pytorch" if args.backend == "pytorch" else None
    config = {"max_batch_size": 1, **engine_config(args)}
    gen_config = GenerationConfig(
        max_new_tokens=args.max_new_tokens,
        do_sample=True,
        random_seed=args.seed,
        **given_sampling(args),
    )
    print("loading the model ...", file=sys.stderr)
    pipe = AsyncEngine(
        args.model_path,
        config,
        args.chat_template or None,
        model_name=args.model_name or None,
        backend=backend,
        generation_config=args.generation_config,
    )
    pipe.sampling_defaults = pipe.sampling_defaults or SAMPLING_DEFAULTS
    with pipe:
        converse(pipe, gen_config, args.meta_instruction, next(iter(config.get("adapters") or ()), None))
    return 0


def converse(
    pipe: "AsyncEngine", gen_config: "GenerationConfig", system: str | None, adapter_name: str | None = None
) -> None:
    """Answer what the user types, turn by turn in a session of the engine: no turn is computed again."""
    session = pipe.session(gen_config, adapter_name)

    def respond(text: str) -> None:
        prompt: Prompt = text
        if system and not session.history:
            prompt = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        turns = len(session.history)
        _print_response(session(prompt))
        if len(session.history) == turns:
            print("(the conversation is too long; `end` starts a new one)")

    def start_again() -> None:
        nonlocal session
        session.close()
        session = pipe.session(gen_config, adapter_name)

    talk(pipe.model_name, respond, start_again)
    session.close()


def _print_response(pieces: "Generator[Response]") -> None:
    """Print a response as it comes; Ctrl-C stops it."""
    try:
        for piece in pieces:
            print(piece.text, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    finally:
        pieces.close()
    print("\n")
