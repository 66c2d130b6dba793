"""Measurements: ``python -m tools.bench NAME [OPTION...]``; ``python -m tools.bench NAME --help`` lists the options."""

import importlib
import sys

from tools.bench import arguments as flags

# Name -> module and function, what it measures.
COMMANDS = {
    "engine": ("tools.bench.standard:main", "the engine alongside transformers, in process and served"),
    "peers": ("tools.bench.compare:main", "other engines alongside ours, against the targets"),
    "structured": ("tools.bench.structured:main", "responses under formats alongside plain ones"),
    "embeddings": ("tools.bench.embeddings:main", "texts a second of an encoder, alongside peers"),
    "agents": ("tools.bench.conversations:main", "conversations, agents and their prefixes"),
}


def main() -> int | None:
    """Run the command that is named; 2 where none is."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        print(f"usage: python -m tools.bench NAME [OPTION...], expected one of these names, got {name!r}:")
        print("\n".join(f"  {name:12} {text}" for name, (_, text) in COMMANDS.items()))
        return 0 if name in ("-h", "--help") else 2
    module, _, function = COMMANDS[name][0].partition(":")
    sys.argv[:2] = [f"tools.bench {name}"]
    found: int | None = getattr(importlib.import_module(module), function)()
    return found


if __name__ == "__main__":
    flags.run(main)
