"""Request router of Ray replicas, by session, adapter or prompt prefix."""

from __future__ import annotations

import random

from ray.serve.request_router import (
    LocalityMixin,
    MultiplexMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from lmdeploy.serve.affinity import SLACK, Affinity
from lmdeploy.serve.ray.exchange import RoutedRequest

_CHOICES = 2  # of which the less loaded one is taken, where nothing speaks for a replica


class AffinityRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """A router of Ray Serve's. Each ingress has one, which knows what it sent where."""

    def initialize_state(self, slack: int = SLACK) -> None:
        """Take the router's settings; Ray calls this once."""
        self._affinity: Affinity[ReplicaID] = Affinity(slack)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return replicas in the order in which they are to be tried; Ray takes the first that has room."""
        if pending_request is None:
            return [candidate_replicas]
        routed = _routed(pending_request)
        pending_request.routing_context.should_backoff = True
        candidates = candidate_replicas
        if pending_request.metadata.multiplexed_model_id:
            with_adapter = self.apply_multiplex_routing(pending_request)
            candidates = [replica for replica in candidates if replica.replica_id in with_adapter] or candidates
        if routed and routed.avoided:
            others = [replica for replica in candidates if replica.replica_id.unique_id not in routed.avoided]
            candidates = others or candidates
        ranks = [random.sample(candidates, min(_CHOICES, len(candidates))), candidates, candidate_replicas]
        if routed:
            by_id = {replica.replica_id: replica for replica in candidates}
            loads = {replica: self.replica_queue_len_cache.get(replica) or 0 for replica in by_id}
            preferred, _ = self._affinity.preferred(routed.keys, routed.session, loads, min(loads.values(), default=0))
            if preferred is not None:
                return [[by_id[preferred]], *ranks]
        return ranks

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: object) -> None:
        """Remember who got a request; Ray calls this."""
        if routed := _routed(pending_request):
            self._affinity.sent(routed.keys, routed.session, replica_id)


def _routed(pending_request: PendingRequest) -> RoutedRequest | None:
    first = pending_request.args[0] if pending_request.args else None
    return first if isinstance(first, RoutedRequest) else None
