"""The exchanges that `outrider-bench tcp` asks for, over an emulated link with bare TCP or gRPC."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.harness.study import WholeStudy
from outrider_bench.studies.options import TcpOptions, Transport
from outrider_bench.studies.tcp.tcp_exchange import ExchangeShape, TcpExchanger, congestion_control, set_sysctls
from outrider_bench.studies.tcp.tcp_grpc import GrpcExchanger, GrpcReplier
from outrider_bench.studies.tcp.tcp_statistics import ExchangePlan, ExchangeStats, measure_exchanges
from outrider_netsim import EngineError, Link, ProfileError, profile_named
from outrider_netsim.core.engine_names import WITH_NETWORK, EngineName
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_proto.errors import LinkError, UsageError


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


@dataclass(frozen=True, slots=True)
class TestedNetwork:
    """The network that was measured."""

    engine: str
    kernel: str
    congestion_control: str


@dataclass(frozen=True, slots=True)
class TcpReport(TcpPlan):
    """The plan, the network that was measured, and the statistics."""

    engine: str
    kernel: str
    congestion_control: str
    cells: Sequence[ExchangeStats]


class TcpStudy(WholeStudy[TcpOptions, TcpReport]):
    async def measure(self, step: Step) -> TcpReport:
        asked = _planned(self.options)
        counter = ProgressCounter(step, asked.transport, len(asked.plan.cells) * asked.plan.connections)
        try:
            network, cells = await (_over_grpc if asked.transport == "grpc" else _over_tcp)(asked, counter)
        except (ProfileError, EngineError) as error:
            raise UsageError(str(error)) from None
        except OSError as error:  # TimeoutError too
            raise LinkError(f"{asked.profile}: {error or 'a reply did not come in time'}") from error
        plan = {each.name: getattr(asked, each.name) for each in fields(asked)}
        return TcpReport(**plan, **asdict(network), cells=cells)

    @staticmethod
    def tables(report: TcpReport) -> list[ResultTable]:
        network = f"{report.engine}, Linux {report.kernel}, {report.congestion_control}"
        return [exchanges_table(f"{report.transport} over {report.profile} ({network})", report.cells)]


def _planned(options: TcpOptions) -> TcpPlan:
    sizes = options.reply or (2000, 9000, 30000)
    shapes = tuple(ExchangeShape(size, min(options.first, size), options.request) for size in sizes)
    return TcpPlan(
        options.profile,
        read_engines(options.engine),
        options.transport,
        ExchangePlan(shapes, tuple(options.idle or (0.0, 0.3, 0.9, 3.0)), options.repeats, options.connections),
        dict(_pair("--sysctl", text) for text in options.sysctl or ()),
        read_channel_options(options.channel_option or ()),
        options.nagle,
        options.seed,
    )


async def _over_tcp(asked: TcpPlan, step: ProgressCounter) -> tuple[TestedNetwork, list[ExchangeStats]]:
    async with Link(profile_named(asked.profile), engine=asked.engines, seed=asked.seed) as link:
        namespaces, network = await _prepared(link, asked)
        return network, await measure_exchanges(lambda: TcpExchanger(namespaces, asked.nagle), asked.plan, step)


async def _over_grpc(asked: TcpPlan, step: ProgressCounter) -> tuple[TestedNetwork, list[ExchangeStats]]:
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
