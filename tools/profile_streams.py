"""Measure the gaps between the chunks of streams: from the engine in this process, and through Triton and the gateway.

A gap is the time from one chunk that brings tokens to the next. Chunks of several tokens are right where the engine
accepted draft tokens together, or the client was behind.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.bench import arguments as flags
from tools.bench.inprocess import in_process
from tools.bench.over_http import over_http
from tools.bench.progress import progress_bar
from tools.bench.report import milliseconds, table, write_report
from tools.bench.server import running_server
from tools.bench.stats import Record, percentile
from tools.bench.workload import GREEDY, Lengths, random_requests


@dataclass(frozen=True)
class Gaps:
    """The gaps of all streams of a run, in seconds, once every stream has its first chunk."""

    streams: int
    where: str
    median: float
    p99: float
    tokens_per_chunk: float

    @staticmethod
    def of(streams: int, where: str, records: list[Record]) -> Gaps:
        """Return the gaps of a run."""
        begin = max(record.arrivals[0][0] for record in records)
        late = [[arrival for arrival in record.arrivals if arrival[0] >= begin] for record in records]
        gaps = [now - before for each in late for (before, _), (now, _) in pairwise(each)]
        counts = [count for each in late for _, count in each]
        return Gaps(streams, where, percentile(gaps, 50), percentile(gaps, 99), sum(counts) / len(counts))


def main() -> None:
    """Measure and print."""
    parser = flags.parser(str(__doc__))
    parser.add_argument("--streams", type=flags.positive, nargs="+", default=[1, 16], help="streams at a time")
    parser.add_argument("--prompt-tokens", type=flags.positive, default=32)
    parser.add_argument("--completion-tokens", type=flags.positive, default=200)
    flags.add_engine(parser)
    flags.add_progress(parser)
    given = parser.parse_args()
    config = flags.engine_config(given, max(given.streams))
    prompts, outputs = (Lengths(count, count) for count in (given.prompt_tokens, given.completion_tokens))
    requests = {count: random_requests(count, prompts, outputs, given.seed) for count in given.streams}
    warm_up = random_requests(1, prompts, Lengths(8, 8), given.seed)
    found: list[Gaps] = []
    with progress_bar(2 * len(requests), "run", is_shown=not given.disable_tqdm) as advance:
        with in_process(given.model_path, config) as engine:
            engine.generate(engine.tokenize(warm_up), 1, GREEDY)
            for count, asked in requests.items():
                found.append(Gaps.of(count, "in process", engine.generate(engine.tokenize(asked), count, GREEDY)))
                advance()
        with running_server(given.model_path, config) as url:
            over_http(url, warm_up, 1, GREEDY)
            for count, asked in requests.items():
                records = over_http(url, asked, count, GREEDY, counts_always=True)
                found.append(Gaps.of(count, "gateway and Triton", records))
                advance()
    steps = {each.streams: each.median for each in found if each.where == "in process"}
    rows = [
        [
            f"{each.streams}, {each.where}",
            *map(milliseconds, (each.median, each.p99)),
            f"{each.median / steps[each.streams]:.2f}",
            f"{each.p99 / steps[each.streams]:.2f}",
            f"{each.tokens_per_chunk:.2f}",
        ]
        for each in sorted(found, key=lambda each: each.streams)
    ]
    print(table(("streams", "p50 ms", "p99 ms", "p50 / step", "p99 / step", "tokens / chunk"), rows))
    write_report(given.json, "profile_streams", gaps=[asdict(each) for each in found])


if __name__ == "__main__":
    flags.run(main)
