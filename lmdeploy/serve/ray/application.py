"""Ray Serve application, built from `RaySettings`."""

from __future__ import annotations

import secrets
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from lmdeploy.serve.ray.autoscaling import QueuePolicy
from lmdeploy.serve.ray.ingress import Ingress
from lmdeploy.serve.ray.replica import Replica
from lmdeploy.serve.ray.settings import RaySettings
from openai_gateway.proxy.settings import ProxySettings

_MANY = 100_000  # requests of an ingress: it holds none back
_STARTS = 3  # of a replica that cannot start, until the deployment fails
_STOPPING_SECONDS = 20  # what tritonserver gets after the requests


def app(settings: RaySettings) -> Application:
    """Return the application.

    ``settings``: the ``args`` of the configuration file, or ``NAME=VALUE`` words after ``serve run
    lmdeploy.serve.ray:app``.
    """
    scale: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.max_replicas is not None and settings.max_replicas > settings.replicas:
        policy = AutoscalingPolicy(
            policy_function=f"{QueuePolicy.__module__}:{QueuePolicy.__name__}",
            policy_kwargs={"waiting_per_replica": settings.waiting_per_replica},
        )
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=settings.replicas,
                max_replicas=settings.max_replicas,
                target_ongoing_requests=settings.target_requests,
                upscale_delay_s=settings.upscale_seconds,
                downscale_delay_s=settings.downscale_seconds,
                look_back_period_s=settings.look_back_seconds,
                policy=policy,
            )
        }
    replicas = serve.deployment(
        name="replica",
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        health_check_period_s=settings.health_seconds,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=settings.drain_seconds + _STOPPING_SECONDS,
        max_constructor_retry_count=_STARTS,
        **scale,
    )(Replica)
    ingress = serve.deployment(
        name="ingress",
        num_replicas=settings.ingresses,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_MANY,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=settings.drain_seconds,
    )(Ingress)
    node_key = secrets.token_urlsafe()
    proxied = ProxySettings(
        strategy="affinity",
        api_keys=settings.api_keys,
        admin_keys=(node_key,),  # nodes are Ray's replicas, nobody else adds any
        node_key=node_key,
        max_body_bytes=int(settings.options.get("max-body-bytes") or ProxySettings.max_body_bytes),
        max_bodies_bytes=int(settings.options.get("max-bodies-bytes") or ProxySettings.max_bodies_bytes),
    )
    bound = replicas.bind(settings, settings.api_keys, node_key)
    application: Application = ingress.bind(bound, proxied)
    return application
