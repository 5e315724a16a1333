"""Deployment on a Ray cluster: launch, update, removal."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.request
from dataclasses import asdict
from typing import Any

from outrider_proto.errors import UsageError
from outrider_proto.wire import MAX_FRAME_BYTES
from outrider_server.config.config import DeployConfig, ServerConfig
from outrider_server.rayserve import ingress

APPLICATION = "outrider"
DEPLOYMENT = "verifier"
_ROUTES_TIMEOUT_S = 60.0
_ATTEMPTS = 3  # to start a replica
_HEALTH_PERIOD_S = 2.0  # Ray's 10 would leave a dead replica's place empty for as long
_OBJECT_STORE_BYTES = 80 * 2**20  # near Ray's least; frames do not go through it
_ROOM_FOR_SHORT_CALLS = 64  # Describe, Check and the like beside the streams; the verifier itself limits sessions


def connect(address: str | None, **options: Any) -> None:  # Any: as ray.init has them
    """Join the cluster at `address`, or start one on this machine. Raises UsageError."""
    # Before ray.init(), which reads it: a server reports nothing to third parties.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if address is None:
        options = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES, **options}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=logging.WARNING, **options)
    except (ConnectionError, ValueError) as error:
        raise UsageError(f"ray_address={address}: {error}") from error


def launch(config: DeployConfig) -> None:
    """Deploy, or replace what is deployed replica by replica; return once it serves. Raises UsageError."""
    from ray import serve

    # After the import, which sets the level too.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    try:
        serve.start(
            http_options={"host": "127.0.0.1", "port": config.deploy.http_port},
            grpc_options={"port": config.port, "grpc_servicer_functions": [f"{ingress.__name__}.add_services"]},
            controller_options={"runtime_env": {"env_vars": _environment(config)}},
        )
        serve.run(_application(config), name=APPLICATION, route_prefix="/")
    except (RuntimeError, TimeoutError) as error:
        raise UsageError(f"Ray could not deploy: {_cause() or error}") from error
    _wait_for_routes(config.deploy.http_port)


def _environment(config: ServerConfig) -> dict[str, str]:
    """Return the environment of Ray's controller and of the proxies, its children."""
    return {
        ingress.ENVIRONMENT: json.dumps({"host": config.host, "security": asdict(config.security)}, default=str),
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{ingress.__name__}.start",
        "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(4 * MAX_FRAME_BYTES),
    }


def _application(config: DeployConfig) -> Any:  # Any: ray.serve.Application
    from ray import serve

    from outrider_server.rayserve.replica import Replica
    from outrider_server.rayserve.routing import SessionRouter

    scale = config.deploy
    if scale.max_replicas is None:
        number: dict[str, Any] = {"num_replicas": scale.replicas}  # Any: as Ray has them
    else:
        bounds = {"min_replicas": scale.replicas, "max_replicas": scale.max_replicas}
        number = {"autoscaling_config": {**bounds, "target_ongoing_requests": scale.streams_per_replica}}
    deployment = serve.deployment(
        Replica,
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": scale.cpus, "num_gpus": scale.gpus},
        max_ongoing_requests=config.limits.max_sessions + _ROOM_FOR_SHORT_CALLS,
        max_constructor_retry_count=_ATTEMPTS,
        health_check_period_s=_HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=config.limits.drain_s,
        graceful_shutdown_wait_loop_s=min(1.0, config.limits.drain_s),
        max_surge_percent=100 if scale.surge else 0,
        request_router_config={"request_router_class": SessionRouter},
        **number,
    )
    return deployment.bind(config)


def _cause() -> str:
    """Return the error of the last failed replica; empty where there is none."""
    from ray import serve

    application = serve.status().applications.get(APPLICATION)
    deployment = application.deployments.get(DEPLOYMENT) if application is not None else None
    lines = [] if deployment is None else deployment.message.strip().splitlines()
    errors = [line.strip() for line in lines if "Error: " in line]
    return errors[-1].partition("Error: ")[2] if errors else ""


def _wait_for_routes(http_port: int) -> None:
    """Wait until this machine's proxy, if it has one, knows the application. Raises UsageError."""
    give_up_at = time.monotonic() + _ROUTES_TIMEOUT_S
    while time.monotonic() < give_up_at:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/-/routes", timeout=5) as answer:
                if APPLICATION in json.load(answer).values():
                    return
        except ConnectionError:
            return
        except OSError:
            pass
        time.sleep(0.1)
    raise UsageError(f"Ray's proxy did not take the application over within {_ROUTES_TIMEOUT_S:.0f} s")
