"""Measure what each format of weights and of the KV cache loses, alongside the same model in float32.

``python tools/evaluate.py MODEL`` writes a table of Markdown: perplexity of texts, how far the next token's
distribution is from float32's, and the share of right answers to tasks that need no download. It ends with 1 if a
format loses more than its bound (``tools/evaluation/formats.py``). ``--help`` lists the flags.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.paths import default_model_dir, locate_model
from tools.bench import arguments as flags
from tools.bench.progress import progress_bar
from tools.bench.report import machine
from tools.evaluation.formats import MADE, REFERENCE, Format, built_in
from tools.evaluation.measuring import TEXTS, Evaluation, Measured, read_pieces


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
        A model, checkpoint or text is not there.
    """
    args = make_parser().parse_args(arguments)
    for path in (args.model_path, *(one.checkpoint for one in args.checkpoint)):
        locate_model(path)  # before anything takes minutes
    evaluation = Evaluation(read_pieces(args.text), args.questions, args.backend)
    measured: dict[str, Measured] = {}
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        for chosen in (REFERENCE, *built_in(args.backend), *(MADE if args.lite else ()), *args.checkpoint):
            with progress_bar(evaluation.steps, "step", title=chosen.name) as advance:
                path = chosen.model(args.model_path, args.work_dir or Path(scratch))
                one = measured[chosen.name] = evaluation.measure(path, chosen, advance)
            if len(measured) == 1:
                print(f"{Path(args.model_path).name}, {one.agreement.places} tokens scored; {machine()}\n")
                print(heading(one))
            print(row(chosen.name, one, measured[REFERENCE.name]), flush=True)
            if chosen.bound is not None:
                passed = chosen.bound.exceeded(one.agreement, evaluation.reference)
                failures += [f"{chosen.name}: {text}" for text in passed]
    if args.json is not None:
        args.json.write_text(json.dumps({name: asdict(one) for name, one in measured.items()}, indent=1))
    if failures:
        sys.exit("\n".join(["", "More is lost than may be:", *failures]))


def heading(first: Measured) -> str:
    """Return the first two lines of the table."""
    names = ["format", "perplexity", "KL, nats", "same top token", *first.right]
    return f"{_line(names)}\n{_line(['---'] + ['---:'] * (len(names) - 1))}"


def row(name: str, one: Measured, first: Measured) -> str:
    """Return the line of a format; ``first`` is the reference."""
    growth = one.agreement.perplexity / first.agreement.perplexity - 1
    alongside = "" if one is first else f" ({growth:+.2%})"
    cells = [f"{one.agreement.perplexity:.2f}{alongside}", f"{one.agreement.divergence:.5f}"]
    shares = (one.agreement.same_top, *one.right.values())
    return _line([name, *cells, *(f"{share:.0%}" for share in shares)])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    flags.run(main)
