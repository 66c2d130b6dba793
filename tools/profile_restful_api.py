"""Measure a running API server under load, with the flags of LMDeploy's benchmark of the same name.

Requests arrive as a Poisson process of ``--request-rate``, or all at once. Tokens are counted by the server's usage.
"""

import argparse
import asyncio
import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from lmdeploy.cli.parser import Parser
from tools.bench import arguments as flags
from tools.bench.over_http import Load, Target, run_open_loop
from tools.bench.report import machine, print_summaries, progress_bar
from tools.bench.workload import Lengths, Request, dataset_requests, random_requests


def make_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = Parser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--backend", choices=["lmdeploy", "openai"], default="lmdeploy", help="kind of server")
    parser.add_argument("--base-url", help="of the server; default: made of host and port")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=23333)
    parser.add_argument("--model", help="default: the first one the server lists")
    parser.add_argument("--dataset-name", choices=["sharegpt", "random"], default="sharegpt")
    parser.add_argument("--dataset-path", type=Path, help="ShareGPT-style JSON; without it prompts are random")
    parser.add_argument("--num-prompts", type=flags.positive, default=1000)
    parser.add_argument("--sharegpt-output-len", type=flags.positive, help="length of every response")
    parser.add_argument("--random-input-len", type=flags.positive, default=1024)
    parser.add_argument("--random-output-len", type=flags.positive, default=128)
    parser.add_argument("--random-range-ratio", type=float, default=0.0, help="shortest lengths, as a share of these")
    parser.add_argument("--request-rate", type=float, default=math.inf, help="requests a second; inf: all at once")
    parser.add_argument("--multi", action="store_true", help="measure every rate of --request-rate-range")
    parser.add_argument("--request-rate-range", default="2,34,2", metavar="START,STOP,STEP")
    parser.add_argument("--max-concurrency", type=flags.positive, default=1024, help="connections at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-file", type=Path, metavar="FILE", help="append each result as a line of JSON")
    flags.add_progress(parser)
    parser.add_argument("--disable-stream", action="store_true")
    parser.add_argument("--disable-ignore-eos", action="store_true")
    parser.add_argument("--extra-request-body", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--disable-warmup", action="store_true")
    return parser


def requests_of(arguments: argparse.Namespace) -> list[Request]:
    """Return the requests the flags describe."""
    output = Lengths.parse(str(arguments.sharegpt_output_len or arguments.random_output_len))
    if arguments.dataset_name == "sharegpt" and arguments.dataset_path is not None:
        return dataset_requests(arguments.dataset_path, arguments.num_prompts, output, arguments.seed)
    ratio = arguments.random_range_ratio
    low, high = (
        Lengths(max(1, int(length * ratio)) if ratio else length, length)
        for length in (arguments.random_input_len, output.high)
    )
    return random_requests(arguments.num_prompts, low, high, arguments.seed)


def rates_of(arguments: argparse.Namespace) -> list[float]:
    """Return the request rates to measure."""
    if not arguments.multi:
        return [arguments.request_rate]
    start, stop, step = (int(part) for part in arguments.request_rate_range.split(","))
    return [float(rate) for rate in range(start, stop, step)]


def target_of(arguments: argparse.Namespace) -> Target:
    """Return the server, which is asked for its first model if none is named."""
    url = (arguments.base_url or f"http://{arguments.host}:{arguments.port}").rstrip("/")
    headers = {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}"}
    model = arguments.model
    if model is None:
        listed = httpx.get(f"{url}/v1/models", headers=headers, timeout=10, trust_env=False)
        listed.raise_for_status()
        model = listed.json()["data"][0]["id"]
    fields = {"temperature": 0.0, "best_of": 1, "ignore_eos": not arguments.disable_ignore_eos}
    fields |= arguments.extra_request_body
    return Target(url=url, model=model, stream=not arguments.disable_stream, fields=fields, headers=headers)


def result_of(rate: float, load: Load) -> dict[str, Any]:
    """Return a run as a line for programs."""
    rate_or_inf = "inf" if math.isinf(rate) else rate
    return {"request_rate": rate_or_inf, "failed": len(load.failures), **asdict(load.summary), "machine": machine()}


def main() -> None:
    """Run the command line."""
    arguments = make_parser().parse_args()
    requests, target = requests_of(arguments), target_of(arguments)
    if not arguments.disable_warmup:
        asyncio.run(run_open_loop(target, requests[:1], math.inf, 1, 0))
    for rate in rates_of(arguments):
        name = f"{rate:g}"
        with progress_bar(len(requests), "request", is_shown=not arguments.disable_tqdm) as advance:
            run = run_open_loop(target, requests, rate, arguments.max_concurrency, arguments.seed, advance)
            load = asyncio.run(run)
        print_summaries({f"{target.model} at {name}/s": load.summary})
        if load.failures:
            print(f"{len(load.failures)} requests failed, the first one: {load.failures[0]}")
        if arguments.output_file is not None:
            arguments.output_file.parent.mkdir(parents=True, exist_ok=True)
            with arguments.output_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result_of(rate, load)) + "\n")


if __name__ == "__main__":
    flags.run(main)
