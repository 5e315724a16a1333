"""The exchanges that `outrider-bench tcp` asks for, over an emulated link with bare TCP or gRPC."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outrider_bench.core.progress import ProgressCounter
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.studies.tcp.tcp_exchange import TcpExchanger, congestion_control, set_sysctls
from outrider_bench.studies.tcp.tcp_statistics import ExchangePlan, ExchangeStats, measure_exchanges
from outrider_netsim import Link, profile_named
from outrider_netsim.core.engine_names import WITH_NETWORK, EngineName
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_proto.errors import UsageError

Transport = Literal["tcp", "grpc"]


@dataclass(frozen=True, slots=True)
class TestedNetwork:
    """The network that was measured."""

    engine: str
    kernel: str
    congestion_control: str

    def __str__(self) -> str:
        return f"{self.engine}, Linux {self.kernel}, {self.congestion_control}"


@dataclass(frozen=True, slots=True)
class TcpPlan:
    """The validated arguments of the command."""

    profile: str
    engines: tuple[EngineName, ...]
    transport: Transport
    plan: ExchangePlan
    sysctls: dict[str, str]
    channel_options: dict[str, int]
    nagle: bool
    seed: int | None


async def run_exchanges(asked: TcpPlan, step: ProgressCounter) -> tuple[TestedNetwork, list[ExchangeStats]]:
    if asked.transport == "grpc":
        return await _over_grpc(asked, step)
    async with Link(profile_named(asked.profile), engine=asked.engines, seed=asked.seed) as link:
        namespaces, network = await _prepared(link, asked)
        return network, await measure_exchanges(lambda: TcpExchanger(namespaces, asked.nagle), asked.plan, step)


async def _over_grpc(asked: TcpPlan, step: ProgressCounter) -> tuple[TestedNetwork, list[ExchangeStats]]:
    from outrider_bench.studies.tcp.tcp_grpc import GrpcExchanger, GrpcReplier

    options = tuple(asked.channel_options.items())
    async with (
        GrpcReplier(options) as replier,
        Link(profile_named(asked.profile), f"127.0.0.1:{replier.port}", asked.engines, asked.seed) as link,
    ):
        _, network = await _prepared(link, asked)
        return network, await measure_exchanges(lambda: GrpcExchanger(link.address, options), asked.plan, step)


async def _prepared(link: Link, asked: TcpPlan) -> tuple[Namespaces, TestedNetwork]:
    namespaces = link.namespaces
    assert namespaces is not None  # only engines that have some are asked for
    await set_sysctls(namespaces, asked.sysctls)
    return namespaces, TestedNetwork(link.engine, platform.release(), await congestion_control(namespaces))


def exchanges_table(title: str, cells: Sequence[ExchangeStats]) -> ResultTable:
    columns = ("bytes", "after", "first", "whole", "p95", "most", "sent", "again", "vain", "cwnd")
    caption = "ms, medians but for p95 and most; packets: sent, sent again, of these needlessly; cwnd when asked"
    return table(title, columns, [_row(cell) for cell in cells], keys=2, caption=caption)


def _row(cell: ExchangeStats) -> list[str]:
    after = "new" if cell.idle_s is None else f"{cell.idle_s:g} s"
    times = (cell.first_ms, cell.whole_ms, cell.p95_ms, cell.most_ms)
    counts = (cell.packets, cell.resent, cell.needless, cell.cwnd) if cell.packets else ()
    return [f"{cell.reply_bytes}", after, *(f"{ms:.0f}" for ms in times), *(f"{count:g}" for count in counts)]


def read_engines(engine: str) -> tuple[EngineName, ...]:
    if engine == "auto":
        return WITH_NETWORK
    if engine not in WITH_NETWORK:
        raise UsageError(f"--engine {engine}: need auto, {' or '.join(WITH_NETWORK)}; a relay ends TCP")
    return (engine,)


def read_sysctls(texts: Sequence[str]) -> dict[str, str]:
    return dict(_pair("--sysctl", text) for text in texts)


def read_channel_options(texts: Sequence[str]) -> dict[str, int]:
    return {name: _whole(name, value) for name, value in (_pair("--channel-option", text) for text in texts)}


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
