"""Digests of what every family's tiny checkpoint computes, to compare two builds bit by bit.

``python -m tests.support.goldens FILE`` writes them; with ``--expect FILE`` it compares with those another build wrote,
names what differs or is missing there and exits with status 1. Each digest is of the tokens and the float32 logits of a
prompt computed in chunks, of the steps after it, and of a second prompt that begins as the first does.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from tests.engine.test_model_families import CASES, FURTHER, PROMPT
from tests.support.tiny_models import make_tiny
from tests.support.token_engine import TokenEngine

# Of the second engine, a layout of each kind: it runs what `transformers` computes.
PYTORCH = ("Llama", "Gemma 2", "Mistral with windows")


def digest_of(name: str, directory: Path, backend: str) -> str:
    """Return the digest of what an engine computes from a case's checkpoint."""
    case = CASES[name]
    make_tiny(directory, case.architecture, **{"vocab_size": 49152} | case.overrides)
    case.publish(directory)
    digest = hashlib.sha256()
    with TokenEngine(directory, backend=backend) as engine:
        for prompt, rows in ((PROMPT, "all"), (PROMPT[:40] + FURTHER, "generation"), (PROMPT * 3, "generation")):
            response, logits = engine.generate(prompt, 8, rows)
            digest.update(torch.tensor(response).numpy().tobytes())
            digest.update(logits.numpy().tobytes())
    return digest.hexdigest()


def digests(report: Callable[[str], None], part: int, parts: int) -> dict[str, str]:
    """Return the digest of each case, by engine and name; of every `parts`-th from number `part` on."""
    found = {}
    cases = [("turbomind", name) for name in CASES] + [("pytorch", name) for name in PYTORCH]
    for backend, name in cases[part::parts]:
        with tempfile.TemporaryDirectory() as folder:
            found[f"{backend}: {name}"] = digest_of(name, Path(folder) / "model", backend)
        report(f"{backend}: {name}")
    return found


def main() -> int:
    """Write or compare digests; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--expect", type=Path)
    parser.add_argument("--part", type=int, nargs=2, metavar=("NUMBER", "OF"), default=(0, 1), help="of the cases")
    options = parser.parse_args()
    found = digests(lambda name: print(name, file=sys.stderr, flush=True), *options.part)
    options.file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.expect is None:
        return 0
    expected = json.loads(options.expect.read_text(encoding="utf-8"))
    different = [name for name, digest in found.items() if expected.get(name) != digest]
    print(f"{len(found) - len(different)} of {len(found)} are bitwise equal")
    print("\n".join(f"differs: {name}" for name in different))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
