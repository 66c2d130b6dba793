"""The engine's metrics as Prometheus reads them."""

import urllib.request

import httpx
from prometheus_client.parser import text_string_to_metric_families

from lmdeploy.serve.tritonserver import TritonServer
from tests.support.commands import ApiServer

Labels = frozenset[tuple[str, str]]


def engine_metrics(server: TritonServer | ApiServer) -> dict[str, float]:
    """Return the ``turbomind_*`` metrics by name, without the prefix."""
    with urllib.request.urlopen(server.metrics_url, timeout=60) as response:
        lines = response.read().decode().splitlines()
    prefix = "turbomind_"
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
    return {name.split("{")[0].removeprefix(prefix): float(value) for name, value in pairs}


def measurement(url: str, name: str) -> float:
    """Return the first value of a metric on a page."""
    page = httpx.get(url, trust_env=False).text
    line = next(line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
    return float(line.rsplit(" ", 1)[1])


def open_requests(url: str) -> int:
    """Return how many requests a gateway has open, without the one that asks."""
    return int(measurement(f"{url}/metrics", "lmdeploy_gateway_requests_open")) - 1


class Metrics:
    """A page of metrics.

    ``values``: by the sample's name and labels.
    """

    def __init__(self, values: dict[tuple[str, Labels], float]) -> None:
        self.values = values

    @property
    def names(self) -> set[str]:
        """Names of samples."""
        return {name for name, _ in self.values}

    def one(self, name: str, **labels: str) -> float:
        """Return the value of the one sample that has these labels, among others."""
        (value,) = (value for (found, had), value in self.values.items() if found == name and labels.items() <= had)
        return value

    def of_family(self, family: str) -> dict[tuple[str, Labels], float]:
        """Return the samples of a histogram, a counter or a gauge."""
        names = {family + ending for ending in ("", "_total", "_bucket", "_count", "_sum")}
        return {key: value for key, value in self.values.items() if key[0] in names}

    def drop(self, name: str) -> None:
        """Forget the samples of a name."""
        self.values = {key: value for key, value in self.values.items() if key[0] != name}


def metrics_of(text: str) -> Metrics:
    """Return the metrics of a page in Prometheus' text format, read by Prometheus' own reader."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(values) == len(samples), "a series is reported twice"
    return Metrics(values)
