"""Interleaved measurements: the compared sides take turns, so that a noisy machine disturbs all alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tqdm import tqdm

from tools.bench.report import progress_bar
from tools.bench.stats import Summary, median

Result = TypeVar("Result")


def take_turns(
    sides: Mapping[str, Callable[[], Result]],  # what to run, by name; in this order in every round
    rounds: int,
    describe: Callable[[Result], str],  # returns a result in a few words
    before: Callable[[], object] = lambda: None,  # called before every run
    *,
    is_shown: bool | None = None,  # whether there is a progress bar, as in `progress_bar`
) -> dict[str, list[Result]]:
    """Run every side once a round, and print each result when it is there.

    Returns the results of each side, round by round.
    """
    results: dict[str, list[Result]] = {name: [] for name in sides}
    with progress_bar(rounds * len(sides), "run", is_shown=is_shown) as advance:
        for _ in range(rounds):
            for name, run in sides.items():
                before()
                result = run()
                results[name].append(result)
                advance()
                tqdm.write(f"   {name}: {describe(result)}")
    return results


def ratio(served: Sequence[float], reference: Sequence[float]) -> float:
    """Return the median over the rounds of served over reference; a side measured less often repeats."""
    rounds = max(len(served), len(reference))
    return median([served[i % len(served)] / reference[i % len(reference)] for i in range(rounds)])


def throughput(run: Summary) -> str:
    """Return a run's tokens/s as text."""
    return f"{run.token_throughput:.1f} tokens/s"


def numbered(runs: Mapping[str, Sequence[Summary]]) -> dict[str, Summary]:
    """Return every run by its own name: the side's, and its round where there are several."""
    return {
        name if len(rounds) == 1 else f"{name} ({number})": summary
        for name, rounds in runs.items()
        for number, summary in enumerate(rounds, 1)
    }
