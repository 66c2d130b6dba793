"""The command line of `tools/evaluate.py`."""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from lmdeploy.paths import default_model_dir
from tools.bench.report import machine
from tools.evaluation.formats import MADE, REFERENCE, Format, built_in
from tools.evaluation.measuring import Evaluation, Measured
from tools.evaluation.texts import TEXTS, read_pieces


def make_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description="Measure what formats of weights and of the KV cache lose.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("model_path", nargs="?", default=str(default_model_dir()), help="Hugging Face directory, not quantized")
    add("--backend", choices=("turbomind", "pytorch"), default="turbomind", help="which engine")
    add("--text", type=Path, default=TEXTS, metavar="FILE", help="pieces of text, a line of four dashes between them")
    add("--questions", type=int, default=20, metavar="INT", help="of each task; 0: no tasks")
    add("--lite", action="store_true", help="also what `lmdeploy lite` makes of the model (takes minutes)")
    add("--work-dir", type=Path, metavar="DIR", help="where these checkpoints are kept; without it, nowhere")
    add(
        "--checkpoint",
        type=named_checkpoint,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="also this checkpoint of the same model (AWQ, GPTQ, fp8, GGUF, ...); may be given several times",
    )
    add("--json", type=Path, metavar="FILE", help="write what was measured to this file too")
    return parser


def named_checkpoint(text: str) -> Format:
    """Read ``NAME=PATH``; an argparse type."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"expected NAME=PATH, got {text}")
    return Format(name, checkpoint=path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 1 if a format loses more than its bound.

    Raises
    ------
    ValueError
        A checkpoint or text is not there.
    """
    args = make_parser().parse_args(arguments)
    if missing := [one.checkpoint for one in args.checkpoint if not Path(one.checkpoint).exists()]:
        raise ValueError(f"there is no checkpoint {', '.join(missing)}")
    evaluation = Evaluation(read_pieces(args.text), args.questions, args.backend)
    measured: dict[str, Measured] = {}
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        for chosen in (REFERENCE, *built_in(args.backend), *(MADE if args.lite else ()), *args.checkpoint):
            print(f"-- {chosen.name}", file=sys.stderr, flush=True)
            path = chosen.model(args.model_path, args.work_dir or Path(scratch))
            one = measured[chosen.name] = evaluation.measure(path, chosen)
            if chosen.bound is not None:
                passed = chosen.bound.exceeded(one.agreement, evaluation.reference)
                failures += [f"{chosen.name}: {text}" for text in passed]
    print(f"{Path(args.model_path).name}, {measured[REFERENCE.name].agreement.places} tokens scored; {machine()}\n")
    print(markdown(measured, REFERENCE.name))
    if args.json is not None:
        args.json.write_text(json.dumps({name: asdict(one) for name, one in measured.items()}, indent=1))
    if failures:
        sys.exit("\n".join(["", "More is lost than may be:", *failures]))


def markdown(measured: Mapping[str, Measured], reference: str) -> str:
    """Return a table with a row a format, the reference's among them."""
    first = measured[reference]
    header = ["format", "perplexity", "KL, nats", "same top token", *first.right]
    rows = [header, ["---"] + ["---:"] * (len(header) - 1)]
    for name, one in measured.items():
        growth = one.agreement.perplexity / first.agreement.perplexity - 1
        alongside = "" if one is first else f" ({growth:+.2%})"
        cells = [f"{one.agreement.perplexity:.2f}{alongside}", f"{one.agreement.divergence:.5f}"]
        shares = (one.agreement.same_top, *one.right.values())
        rows.append([name, *cells, *(f"{share:.0%}" for share in shares)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
