"""Public names of earlier versions that have a new spelling now. The old ones work for one release.

`docs/reference/renamed.md` shows these tables, and `tests/unit/test_renamed.py` uses every old name.
"""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

TRITON_MODELS = {"ensemble_pictures": "ensemble_vision"}
"""Old name to new name of an ensemble. A repository of one model has both."""

GATEWAY_METRICS = {
    "lmdeploy_gateway_answers": "lmdeploy_gateway_responses",
    "lmdeploy_gateway_answer_seconds": "lmdeploy_gateway_request_latency_seconds",
    "lmdeploy_gateway_answer_tokens": "lmdeploy_gateway_generation_tokens",
}
"""Families on the gateway's page, without the suffixes of their samples."""

ENGINE_METRICS = {
    "tokens_sought_total": "prefix_cache_queries_total",
    "tokens_matched_total": "prefix_cache_hits_total",
}
"""Counters of the engine: on Triton's page with the prefix ``turbomind_``, and in ``Engine.metrics()``."""

CONVERSATION_KEYS = {"pictures": "images", "answers": "responses"}
"""Keys of conversations that the chat page has saved; read, not written."""

OPTIONS = {
    "lmdeploy plan --answer": "--output-tokens",
    "tools/gpu_check.sh --rehearse": "--dry-run",
    "tools.bench.compare --patience": "--timeout",
}
"""Command-line options."""

PLAN_KEYS = {"answer_rate": "output_rate"}
"""Keys of ``lmdeploy plan --json``."""

COMPARISON_KEYS = {"beside": "alongside"}
"""Keys of a row in the report of ``tools.bench.compare --json``."""

FLEET_STRATEGIES = {"rotating": "round_robin", "two": "power_of_two", "least": "least_loaded"}
"""Values of ``tools.fleet --strategies``."""


def with_old_keys(report: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return a report that has its values under their old keys too."""
    return {**report, **{old: report[new] for old, new in renamed.items()}}


def warn(where: str, old: str, new: str) -> None:
    """Print that a name is old."""
    print(f"{where}: {old} is called {new} now; the old name works until 0.3", file=sys.stderr)


def accept_old_option(container: argparse._ActionsContainer, option: argparse.Action, old: str) -> None:
    """Take an option under its old name too, with a warning that names the new one.

    Parameters
    ----------
    container
        The parser or group of the option.
    option
        What ``add_argument`` returned for the new name.
    old
        The old name, with its dashes. ``--help`` leaves it out.
    """

    class Old(argparse.Action):
        def __call__(
            self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, name: str | None = None
        ) -> None:
            new = option.option_strings[0]
            warn(parser.prog, old, new)
            option(parser, namespace, values, new)

    container.add_argument(
        old,
        action=Old,
        dest=option.dest,
        nargs=option.nargs,
        type=option.type or str,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
