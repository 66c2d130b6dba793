"""The engine's figures as Prometheus reads them."""

import urllib.request

from lmdeploy.serve.tritonserver import TritonServer


def engine_metrics(server: TritonServer) -> dict[str, float]:
    """Return the ``turbomind_*`` metrics by name, without the prefix."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    prefix = "turbomind_"
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
    return {name.split("{")[0].removeprefix(prefix): float(value) for name, value in pairs}
