"""The command `outrider-server deploy`."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from outrider_proto.addresses import free_port, join_host_port
from outrider_proto.errors import UsageError
from outrider_proto.files import write_for_user
from outrider_proto.options.command import with_options
from outrider_proto.terminal.text import print_line
from outrider_server.config.config import DeployConfig
from outrider_server.config.file import load_config
from outrider_server.security.address import check_exposure, check_free


@with_options(
    DeployConfig,
    partial(load_config, kind=DeployConfig),
    shown=lambda option: option.path[0] == "deploy" and not option.flag.expert,
)
def deploy(
    config: DeployConfig,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Deploy to or update this cluster (auto: the one on this machine), and return."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the service from the cluster.")] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="File to write the addresses to, as JSON, once ready.")
    ] = None,
) -> None:
    """Run the service on Ray Serve: on a cluster, or on a local one until SIGINT or SIGTERM."""
    if remove and ray_address is None:
        raise UsageError("remove needs --ray-address: from which cluster?")
    check_exposure(config.host, config.security)
    if config.telemetry.metrics_port is not None:
        print_line("outrider-server: metrics_port has no effect here: replicas serve Ray's metrics", err=True)
    if find_spec("ray") is None:
        raise UsageError('Ray is not installed: pip install "outrider[deploy]"')
    scale = replace(config.deploy, http_port=config.deploy.http_port or free_port())
    config = replace(config, port=config.port or free_port(), deploy=scale)
    if ray_address is None:
        _run_here(config, ready_file)
    else:
        from ray import serve

        from outrider_server.rayserve.launch import connect

        connect(ray_address)
        if remove:
            serve.shutdown()  # the cluster stays
        else:
            _launch(config, ready_file)


def _run_here(config: DeployConfig, ready_file: Path | None) -> None:
    """Run on a local cluster that ends with this command."""
    from outrider_drafters.checkpoints.target_weights import resolve_dir  # torch: only where there is work for it

    # Fail here and now: a replica that cannot find its target would be started again and again.
    resolve_dir(config.target)
    # Ray would try to listen again and again.
    for host, port in ((config.host.strip("[]"), config.port), ("127.0.0.1", config.deploy.http_port)):
        check_free(host, port)
    import ray
    from ray import serve

    from outrider_server.rayserve.launch import connect

    scale = config.deploy
    connect(None, num_cpus=max(os.cpu_count() or 1, math.ceil(scale.most_replicas * scale.cpus)))
    try:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        _launch(config, ready_file)
        stop.wait()
        serve.shutdown()
    finally:
        ray.shutdown()


def _launch(config: DeployConfig, ready_file: Path | None) -> None:
    import ray

    from outrider_server.rayserve.launch import launch

    scale, limits, machines = config.deploy, config.limits, max(sum(node["Alive"] for node in ray.nodes()), 1)
    kv_memory, kv_swap = limits.kv_memory or scale.kv_memory(machines), limits.kv_swap or scale.kv_swap(machines)
    config = replace(config, limits=replace(limits, kv_memory=kv_memory, kv_swap=kv_swap))
    launch(config)
    address = join_host_port(config.host, config.port)
    if ready_file is not None:
        ready = {"address": address, "ray": ray.get_runtime_context().gcs_address, "http_port": scale.http_port}
        write_for_user(ready_file, json.dumps(ready) + "\n", "ready_file")  # a script may be waiting for the file
    number = scale.replicas if scale.max_replicas is None else f"{scale.replicas} to {scale.max_replicas}"
    print_line(f"outrider-server: ready on {address}, replicas: {number}; Ray listens on ports of its own", err=True)
