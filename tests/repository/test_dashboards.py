"""Dashboard, alerts and autoscaler ask for metrics that there are. With a real engine: tests/e2e/test_metrics.py."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.metrics.page import GatewayMetrics
from openai_gateway.metrics.responses import Watch
from openai_gateway.settings import DEFAULT_PORT
from tests.support.metrics import metrics_of
from tests.support.queries import DEPLOY, SCRAPED, SCRAPER, all_queries

ROOT = Path(__file__).resolve().parent.parent.parent
ENGINE = re.compile(r'"((?:turbomind_|vllm:|lmdeploy:|nv_trt_llm_)\w+)"')


def gateway_samples() -> dict[str, set[str]]:
    """Return the labels of each sample on a gateway's page."""
    metrics = GatewayMetrics()
    metrics.requests.observe("/v1/models", "GET", 200, 0.1)
    Watch(metrics.responses.of("m"), 0.0, 1).see(GenerateChunk(generate_token_len=1, finish_reason="stop"))
    return {name: {key for key, _ in labels} for name, labels in metrics_of(metrics.text().decode()).values}


def engine_names() -> set[str]:
    """Return the names that the backend gives its metrics."""
    files = [ROOT / "backend_cpp" / name for name in ("engine/engine_metrics.h", "triton/metrics.cc")]
    names = {name for file in files for name in ENGINE.findall(file.read_text(encoding="utf-8"))}
    histograms = {name for name in names if name.endswith("_seconds")}  # a counter's name ends in _total
    return names - histograms | {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}


def test_every_metric_asked_for_exists_and_has_the_labels_it_is_selected_by() -> None:
    gateway, engine = gateway_samples(), engine_names()
    assert len(engine) > 30
    queries = all_queries()
    assert len(queries) > 40
    for where, metrics in queries.items():
        assert metrics, f"{where} asks for nothing"
        for name, labels in metrics:
            assert name in gateway or name in engine or name == SCRAPED, f"{where} asks for {name}"
            assert labels - SCRAPER <= gateway.get(name, {"model"}), f"{where} selects {name} by {labels}"


def test_every_metric_of_the_engine_is_documented() -> None:
    text = (ROOT / "docs" / "deployment" / "operations.md").read_text(encoding="utf-8")
    reported = re.sub(r"`\.\.\._(\w+)`", r"`turbomind_requests_\1`", text)
    assert {name for name in families(engine_names()) | gateway_families() if not is_named(name, reported)} == set()


def gateway_families() -> set[str]:
    return families({name for name in gateway_samples() if not name.endswith("_created")})


def families(samples: set[str]) -> set[str]:
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in samples}


def is_named(name: str, text: str) -> bool:
    """Return whether a document names a metric, possibly under the heading of a prefix and with labels."""
    names = {name, name.removeprefix("lmdeploy_gateway_")}
    marked = f"`{name.replace('lmdeploy:', 'vllm:')}`*"  # a star says that LMDeploy's has the same ending
    if name.startswith("lmdeploy:") and marked in text:
        return True
    # gpu_prefix_cache_...: the older names of what is alongside them.
    return any(re.search(rf"`{re.escape(one)}[`{{]", text) for one in names) or "gpu_prefix_cache" in name


def test_compose_starts_all_three_and_hands_them_their_files() -> None:
    folder = ROOT / "docker"
    services = yaml.safe_load((folder / "compose.yml").read_text("utf-8"))["services"]
    assert set(services) == {"server", "prometheus", "grafana"}
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (folder / source).exists()
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    assert scraped["job_name"] == "lmdeploy"  # what queries select by
    assert scraped["static_configs"] == [{"targets": [f"server:{DEFAULT_PORT}"]}]
    mounted = dict(volume.split(":")[1::-1] for volume in services["grafana"]["volumes"])
    provided = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provided / "dashboards" / "lmdeploy.yml").read_text("utf-8"))["providers"]
    assert mounted[provider["options"]["path"]] == "../deploy/grafana/dashboards"
    (source,) = yaml.safe_load((provided / "datasources" / "prometheus.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
