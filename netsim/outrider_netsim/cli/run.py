"""`outrider-netsim run -- COMMAND`: run a command behind an emulated link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_lines import introduction, totals
from outrider_netsim.cli.link_options import (
    LINK_PANEL,
    OUTPUT_PANEL,
    TRAFFIC_PANEL,
    CongestionOption,
    DelayOption,
    DistributionOption,
    InOrderOption,
    JitterOption,
    LinkAdjustments,
    LossOption,
    OutageOption,
    PacketLogOption,
    PcapOption,
    ProfileOption,
    QueueOption,
    RateOption,
    SeedOption,
    link_profile,
)
from outrider_netsim.cli.terminal import errors, exit_on_error
from outrider_netsim.core.addresses import Address, check_port, parse_address
from outrider_netsim.core.engine_names import (
    DEFAULT_CONGESTION,
    DEFAULT_UPSTREAM,
    PLACEHOLDER,
    WITH_NETWORK,
    EngineChoice,
    EngineName,
)
from outrider_netsim.core.errors import EngineError

if TYPE_CHECKING:
    from rich.console import Console

    from outrider_netsim.link import Link
    from outrider_netsim.profiles.profile import Profile

NOT_EXECUTABLE_EXIT, NOT_FOUND_EXIT = 126, 127  # as in shells

app = typer.Typer()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command and the link to run it behind."""

    profile: Profile
    engines: tuple[EngineName, ...]
    upstreams: tuple[Address, ...]
    seed: int | None
    congestion: str
    clients: int
    pcap: Path | None
    packet_log: Path | None
    command: tuple[str, ...]


@app.command(no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command to run, with its arguments.")],
    profile: ProfileOption = None,
    delay: DelayOption = None,
    jitter: JitterOption = None,
    distribution: DistributionOption = None,
    loss: LossOption = None,
    rate: RateOption = None,
    queue: QueueOption = None,
    in_order: InOrderOption = None,
    outage: OutageOption = None,
    congestion: CongestionOption = DEFAULT_CONGESTION,
    seed: SeedOption = None,
    engine: Annotated[
        EngineChoice,
        typer.Option(
            help="Engine of the link; auto takes the most realistic one that this machine allows.",
            rich_help_panel=LINK_PANEL,
        ),
    ] = "auto",
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Address of a server behind the link; repeatable.  [default: {DEFAULT_UPSTREAM}]",
            show_default=False,
            rich_help_panel=TRAFFIC_PANEL,
        ),
    ] = None,
    clients: Annotated[
        int,
        typer.Option(
            min=1,
            help="How often to run COMMAND, all at once over the one link; OUTRIDER_CLIENT tells each its number.",
            rich_help_panel=TRAFFIC_PANEL,
        ),
    ] = 1,
    pcap: PcapOption = None,
    packet_log: PacketLogOption = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing about the link.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
) -> None:
    """Run COMMAND behind an emulated link and exit with its status.

    With the engines kernel and tun, COMMAND has its own network, where 127.0.0.1 and the port of each --upstream lead
    through the link to that server. The proxy engine has no network: write {link} where COMMAND takes the server's
    address.
    """
    import asyncio

    from rich.console import Console

    with exit_on_error():
        adjustments = LinkAdjustments(delay, jitter, distribution, loss, rate, queue, in_order)
        options = RunOptions(
            link_profile(profile, adjustments, outage),
            _engines(engine, command),
            tuple(_server(text) for text in upstream or [DEFAULT_UPSTREAM]),
            seed,
            congestion,
            clients,
            pcap,
            packet_log,
            tuple(command),
        )
        status = asyncio.run(_run(options, Console(quiet=True) if quiet else errors))
    raise typer.Exit(status)


async def _run(options: RunOptions, console: Console) -> int:
    from outrider_netsim.cli.link_controls import LinkControls, announced_outages, without_cuts
    from outrider_netsim.link import Link

    profile, upstream = without_cuts(options.profile), str(options.upstreams[0])
    link = Link(
        profile,
        upstream,
        options.engines,
        options.seed,
        congestion=options.congestion,
        pcap=options.pcap,
        packet_log=options.packet_log,
    )
    try:
        await link.start()
    except EngineError as error:
        raise _with_remedy(error, options) from None
    try:
        _introduce(link, options, console)
        async with announced_outages(LinkControls(link, console), options.profile.outages):
            status = await link.run(options.command, options.upstreams, clients=options.clients)
        _print(console, totals(link.stats))
    except OSError as error:
        status = _not_executed(options.command[0], error)
    finally:
        await link.aclose()
    return status


def _introduce(link: Link, options: RunOptions, console: Console) -> None:
    _print(console, introduction(link))
    if link.engine == "proxy" and not _names_link(options.command):
        _print(console, f"only what connects to {link.address} (OUTRIDER_LINK_ADDRESS) goes through the link")


def _engines(engine: EngineChoice, command: Sequence[str]) -> tuple[EngineName, ...]:
    """Return the engines to try."""
    # Not the proxy unless the command names the link: it would silently connect past it.
    if engine == "auto" and not _names_link(command):
        return WITH_NETWORK
    from outrider_netsim.link import candidates

    return candidates(engine)


def _names_link(command: Sequence[str]) -> bool:
    return any(PLACEHOLDER in word for word in command)


def _server(text: str) -> Address:
    server = parse_address("--upstream", text)
    check_port("--upstream port", server.port)
    return server


def _with_remedy(error: EngineError, options: RunOptions) -> EngineError:
    if options.engines != WITH_NETWORK:
        return error
    return EngineError(
        f"{error}. Or write {PLACEHOLDER} where COMMAND takes the server's address: then the proxy engine will do"
    )


def _not_executed(command: str, error: OSError) -> int:
    """Return the exit status for a command that cannot be executed. Raises EngineError for other failures."""
    match error:
        case FileNotFoundError():
            status = NOT_FOUND_EXIT
        case PermissionError():
            status = NOT_EXECUTABLE_EXIT
        case _:
            raise EngineError(str(error)) from None
    errors.print(f"{command}: {error.strerror}", soft_wrap=True, markup=False)
    return status


def _print(console: Console, text: str) -> None:
    console.print(f"outrider-netsim: {text}", soft_wrap=True, markup=False)
