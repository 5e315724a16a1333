"""The command `outrider-bench tcp`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from outrider_bench.cli.options import JsonOption
from outrider_bench.core.progress import ProgressCounter, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import show
from outrider_proto.errors import LinkError, UsageError


def tcp_command(
    profile: Annotated[str, typer.Option(help="Link profile of outrider-netsim: name or file.")] = "paper-4g",
    engine: Annotated[str, typer.Option(help="kernel, tun, or auto, which takes the best one that works.")] = "auto",
    transport: Annotated[
        Literal["tcp", "grpc"], typer.Option(help="tcp: bare sockets; grpc: with the product's channel options.")
    ] = "tcp",
    reply: Annotated[
        list[int] | None, typer.Option(min=1, help="Bytes of a reply; repeatable; default: 2000, 9000, 30000.")
    ] = None,
    idle: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Idle seconds before an exchange; repeatable; default: 0, 0.3, 0.9, 3."),
    ] = None,
    first: Annotated[
        int, typer.Option(min=0, help="Bytes of the reply written first, as a verdict is before its features.")
    ] = 60,
    request: Annotated[int, typer.Option(min=12, help="Bytes of a request.")] = 250,
    repeats: Annotated[int, typer.Option(min=1, help="Exchanges of each size after each idle time.")] = 20,
    connections: Annotated[
        int, typer.Option(min=1, help="Connections that the exchanges of one size and idle time are spread over.")
    ] = 4,
    sysctl: Annotated[
        list[str] | None, typer.Option(help="net.ipv4.NAME=VALUE on both ends of the link; repeatable.")
    ] = None,
    channel_option: Annotated[
        list[str] | None, typer.Option(help="grpc.NAME=NUMBER on both sides; repeatable.")
    ] = None,
    nagle: Annotated[bool, typer.Option(help="Leave Nagle's algorithm on (tcp only).")] = False,
    seed: Annotated[int | None, typer.Option(help="Random seed of the link; default: the profile's.")] = None,
    json: JsonOption = None,
) -> None:
    """Measure how long replies of given sizes take over a link after given idle times; medians and quantiles."""
    from outrider_bench.studies.tcp.tcp_exchange import ExchangeShape
    from outrider_bench.studies.tcp.tcp_statistics import ExchangePlan
    from outrider_bench.studies.tcp.tcp_study import (
        TcpPlan,
        exchanges_table,
        read_channel_options,
        read_engines,
        read_sysctls,
        run_exchanges,
    )
    from outrider_netsim import EngineError, ProfileError

    shapes = tuple(ExchangeShape(size, min(first, size), request) for size in reply or (2000, 9000, 30000))
    asked = TcpPlan(
        profile,
        read_engines(engine),
        transport,
        ExchangePlan(shapes, tuple(idle or (0.0, 0.3, 0.9, 3.0)), repeats, connections),
        read_sysctls(sysctl or ()),
        read_channel_options(channel_option or ()),
        nagle,
        seed,
    )
    with progress_line() as step:
        counter = ProgressCounter(step, transport, len(asked.plan.cells) * connections)
        try:
            used, stats = asyncio.run(run_exchanges(asked, counter))
        except (ProfileError, EngineError) as error:
            raise UsageError(str(error)) from None
        except OSError as error:  # TimeoutError too
            raise LinkError(f"{profile}: {error or 'a reply did not come in time'}") from error
    show(exchanges_table(f"{transport} over {profile} ({used})", stats))
    write_report(json, {**asdict(asked), **asdict(used), "cells": [asdict(one) for one in stats]})
