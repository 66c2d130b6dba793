"""Autoscaling policy of Ray replicas."""

from __future__ import annotations

import math
from typing import Any

from ray.serve.config import AutoscalingContext


class QueuePolicy:
    """Ray Serve's policy for this application.

    One replica more when requests wait before the engines' batches; none less while any does; else what open requests
    call for. Bounds and delays are Ray's, as configured.
    """

    def __init__(self, waiting_per_replica: float) -> None:
        self._bound = waiting_per_replica  # requests that may wait, on average

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """Return the desired number of replicas, and no state."""
        metrics = context.aggregated_metrics or {}
        waiting, running = (sum(metrics.get(state, {}).values()) for state in ("waiting", "running"))
        desired = desired_replicas(
            context.current_num_replicas,
            waiting + running,
            waiting,
            target_requests=context.config.get_target_ongoing_requests(),
            waiting_per_replica=self._bound,
        )
        return desired, {}


def desired_replicas(
    current: int, requests: float, waiting: float, *, target_requests: float, waiting_per_replica: float
) -> int:
    """Return the desired number of replicas.

    ``current``: replicas there are. ``requests``: open requests of all of them. ``waiting``: those of them that wait
    before the engines' batches. ``target_requests``, ``waiting_per_replica``: see `RaySettings`.
    """
    by_requests = math.ceil(requests / target_requests)
    if waiting > waiting_per_replica * current:
        return max(by_requests, current + 1)
    return max(by_requests, current if waiting > 0 else 0)
