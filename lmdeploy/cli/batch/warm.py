"""`lmdeploy warm`: fill a cache directory with shared prompt prefixes before serving."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lmdeploy.cli.options import add_engine_options, add_model_options, add_model_path, engine_config


def add_parser(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "warm",
        help="Precompute prompts into a cache directory.",
        description=(
            "Compute the KV cache of prompts in this process and store it in --cache-dir, where "
            "servers with the same model and settings find it (docs/deployment/disk-cache.md)."
        ),
    )
    parser.add_argument(
        "prompts",
        type=Path,
        metavar="PROMPTS",
        help='File with one JSON object per line: {"messages": [...]} or {"prompt": "..."}.',
    )
    add_model_path(parser)
    add_engine_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def read_prompts(path: Path) -> list[Any]:
    """Return the prompts of a file, conversations and texts.

    Raises `ValueError` if a line is something else; the error says which, and `OSError` if the file cannot be read.
    """
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: no JSON: {error}") from None
        known = [entry[key] for key in ("messages", "prompt") if isinstance(entry, dict) and key in entry]
        if len(known) != 1 or not isinstance(known[0], (list, str)):
            raise ValueError(f'{path}, line {number}: expected {{"messages": [...]}} or {{"prompt": "..."}}')
        prompts.append(known[0])
    return prompts


def run(args: argparse.Namespace) -> int:
    """Compute the prompts; return the exit status."""
    from lmdeploy.messages import GenerationConfig
    from lmdeploy.offline.async_engine import AsyncEngine

    config = engine_config(args)
    if not config.get("cache_dir"):
        raise ValueError("--cache-dir is missing: prompts are kept there")
    prompts = read_prompts(args.prompts)
    backend = "pytorch" if args.backend == "pytorch" else None
    with AsyncEngine(args.model_path, config, args.chat_template or None, backend=backend) as model:
        gen_config = GenerationConfig(max_new_tokens=1)
        for prompt in prompts:
            response = model(prompt, gen_config, do_preprocess=not isinstance(prompt, str))
            if response.finish_reason == "length" and not response.token_ids:
                print(f"lmdeploy warm: a prompt of {response.input_token_len} tokens is too long", file=sys.stderr)
    print(f"prompts kept in {config['cache_dir']}: {len(prompts)}", file=sys.stderr)
    return 0
