"""The command `outrider-bench tcp`."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from outrider_bench.core.progress import Counter, progress_line
from outrider_bench.core.report import write_report
from outrider_bench.core.tables import table
from outrider_bench.studies.tcp.tcp_cells import Cell, Plan, measured
from outrider_bench.studies.tcp.tcp_exchange import Shape, TcpExchanger, congestion_control, set_sysctls
from outrider_netsim import EngineError, Link, ProfileError, profile_named
from outrider_netsim.link import WITH_NETWORK, EngineName
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_proto.errors import LinkError, UsageError

Transport = Literal["tcp", "grpc"]
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Network:
    """On what it was measured."""

    engine: str
    kernel: str
    congestion_control: str

    def __str__(self) -> str:
        return f"{self.engine}, Linux {self.kernel}, {self.congestion_control}"


@dataclass(frozen=True, slots=True)
class Request:
    """A command's arguments, read."""

    profile: str
    engines: tuple[EngineName, ...]
    transport: Transport
    plan: Plan
    sysctls: dict[str, str]
    channel_options: dict[str, int]
    nagle: bool
    seed: int | None


def tcp_command(
    profile: Annotated[str, typer.Option(help="A link of outrider-netsim: name or file.")] = "paper-4g",
    engine: Annotated[str, typer.Option(help="kernel, tun, or auto: the better one that works here.")] = "auto",
    transport: Annotated[Transport, typer.Option(help="tcp: bare sockets; grpc: our own options.")] = "tcp",
    reply: Annotated[list[int] | None, typer.Option(min=1, help="Bytes of a reply; repeatable.")] = None,
    idle: Annotated[list[float] | None, typer.Option(min=0, help="Seconds of silence before; repeatable.")] = None,
    first: Annotated[int, typer.Option(min=0, help="Bytes of the reply that are written first, as a verdict.")] = 60,
    request: Annotated[int, typer.Option(min=12, help="Bytes of a request.")] = 250,
    repeats: Annotated[int, typer.Option(min=1, help="Exchanges of each size after each idle time.")] = 20,
    connections: Annotated[int, typer.Option(min=1, help="Over so many connections.")] = 4,
    sysctl: Annotated[
        list[str] | None, typer.Option(help="net.ipv4.NAME=VALUE on the link's ends; repeatable.")
    ] = None,
    channel_option: Annotated[
        list[str] | None, typer.Option(help="grpc.NAME=NUMBER on both sides; repeatable.")
    ] = None,
    nagle: Annotated[bool, typer.Option(help="Without TCP_NODELAY (tcp).")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the link; default: the profile's.")] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the report here; - for standard output.")] = None,
) -> None:
    """How long replies of given sizes take after given silences, over a link: medians and quantiles."""
    shapes = tuple(Shape(size, min(first, size), request) for size in reply or (2000, 9000, 30000))
    asked = Request(
        profile,
        _engines(engine),
        transport,
        Plan(shapes, tuple(idle or (0.0, 0.3, 0.9, 3.0)), repeats, connections),
        dict(_pair("--sysctl", text) for text in sysctl or ()),
        {name: _whole(name, value) for name, value in (_pair("--channel-option", t) for t in channel_option or ())},
        nagle,
        seed,
    )
    with progress_line() as step:
        counter = Counter(step, transport, len(asked.plan.cells) * connections)
        try:
            used, cells = asyncio.run(_run(asked, counter))
        except (ProfileError, EngineError) as error:
            raise UsageError(str(error)) from None
        except OSError as error:  # TimeoutError too
            raise LinkError(f"{profile}: {error or 'a reply did not come in time'}") from error
    console.print(_table(f"{transport} over {profile} ({used})", cells))
    write_report(json, {**asdict(asked), **asdict(used), "cells": [asdict(cell) for cell in cells]})


async def _run(asked: Request, step: Counter) -> tuple[Network, list[Cell]]:
    if asked.transport == "grpc":
        return await _over_grpc(asked, step)
    async with Link(profile_named(asked.profile), engine=asked.engines, seed=asked.seed) as link:
        namespaces, network = await _prepared(link, asked)
        return network, await measured(lambda: TcpExchanger(namespaces, asked.nagle), asked.plan, step)


async def _over_grpc(asked: Request, step: Counter) -> tuple[Network, list[Cell]]:
    from outrider_bench.studies.tcp.tcp_grpc import GrpcExchanger, GrpcReplier

    options = tuple(asked.channel_options.items())
    async with (
        GrpcReplier(options) as replier,
        Link(profile_named(asked.profile), f"127.0.0.1:{replier.port}", asked.engines, asked.seed) as link,
    ):
        _, network = await _prepared(link, asked)
        return network, await measured(lambda: GrpcExchanger(link.address, options), asked.plan, step)


async def _prepared(link: Link, asked: Request) -> tuple[Namespaces, Network]:
    namespaces = link.namespaces
    assert namespaces is not None  # only engines that have some are asked for
    await set_sysctls(namespaces, asked.sysctls)
    return namespaces, Network(link.engine, platform.release(), await congestion_control(namespaces))


def _table(title: str, cells: Sequence[Cell]) -> Table:
    columns = ("bytes", "after", "first", "whole", "p95", "most", "sent", "again", "vain", "cwnd")
    caption = "ms, medians but for p95 and most; packets: sent, sent again, of these in vain; window when asked"
    found = table(title, columns, [_row(cell) for cell in cells])
    found.caption = caption
    return found


def _row(cell: Cell) -> list[str]:
    after = "new" if cell.idle_s is None else f"{cell.idle_s:g} s"
    times = (cell.first_ms, cell.whole_ms, cell.p95_ms, cell.most_ms)
    counts = (cell.packets, cell.resent, cell.needless, cell.cwnd) if cell.packets else ()
    return [f"{cell.reply_bytes}", after, *(f"{ms:.0f}" for ms in times), *(f"{count:g}" for count in counts)]


def _engines(engine: str) -> tuple[EngineName, ...]:
    if engine == "auto":
        return WITH_NETWORK
    if engine not in WITH_NETWORK:
        raise UsageError(f"--engine {engine}: need auto, {' or '.join(WITH_NETWORK)}; a relay ends TCP")
    return (engine,)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"{option} {text!r}: need NAME=VALUE")
    return name, value


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"--channel-option {name}={value}: need a whole number") from None
