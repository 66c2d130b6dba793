"""Prometheus queries of dashboard, alert rules and the autoscaler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
SCRAPER = frozenset({"job", "instance", "namespace", "pod"})  # labels that Prometheus adds
SCRAPED = "up"  # a metric that it makes itself

_TEXT = re.compile(r'"(?:\\.|[^"\\])*"')
_WORDS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool"})
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_SELECTOR = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)\s*(?P<call>\()?(?:\{(?P<labels>[^}]*)\})?")

Selectors = list[tuple[str, set[str]]]


def queried_metrics(query: str) -> Selectors:
    """Return the metrics that a query names, each with the labels it is selected by."""
    text = _GROUPING.sub(" ", re.sub(r"\[[^\]]*\]", " ", _TEXT.sub('""', query)))
    return [
        (match["name"], set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", match["labels"] or "")))
        for match in _SELECTOR.finditer(text)
        if not match["call"] and match["name"] not in _WORDS
    ]


def all_queries() -> dict[str, Selectors]:
    """Return the metrics of every query, by where it is."""
    found = dict(_of_rules()) | dict(_of_dashboard()) | dict(_of_autoscaler())
    return {where: queried_metrics(query) for where, query in found.items()}


def _of_rules() -> Iterator[tuple[str, str]]:
    for path in (DEPLOY / "prometheus" / "rules").glob("*.yml"):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                yield rule["alert"], rule["expr"]


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "lmdeploy.json").read_text("utf-8"))
    return found


def _of_dashboard() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            (series,) = re.findall(r"label_values\((.*), \w+\)", variable["query"]["query"])
            yield f"${variable['name']}", series


def _of_autoscaler() -> Iterator[tuple[str, str]]:
    for number, rule in enumerate(
        yaml.safe_load((DEPLOY / "prometheus" / "adapter.yml").read_text())["rules"]["custom"]
    ):
        yield f"adapter {number}", rule["seriesQuery"]
