"""`outrider-netsim run -- COMMAND`: run a command behind an emulated link."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.terminal import errors, exit_on_error
from outrider_netsim.core.addresses import Address, check_port, parse_address
from outrider_netsim.core.engine_names import DEFAULT_UPSTREAM, PLACEHOLDER, WITH_NETWORK, EngineChoice, EngineName
from outrider_netsim.core.errors import EngineError

if TYPE_CHECKING:
    from rich.console import Console

    from outrider_netsim.impairments.path import LinkStats, PathStats
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
    command: tuple[str, ...]


@app.command(no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="Command to run, with its arguments.")],
    profile: Annotated[str, typer.Option(help="A name from `outrider-netsim list`, FILE.toml, or FILE.toml:NAME.")],
    engine: Annotated[
        EngineChoice,
        typer.Option(help="Engine of the link; auto takes the most realistic one that this machine allows."),
    ] = "auto",
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Address of a server behind the link; repeatable.  [default: {DEFAULT_UPSTREAM}]",
            show_default=False,
        ),
    ] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DURATION@START",
            help="Planned outage such as 3s@10s, or 1s@5s/30s for a recurring one; 50ms@7s/20s+hold keeps packets and "
            "forwards them afterwards; repeatable.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed for delays and losses, instead of the profile's.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing about the link.")] = False,
) -> None:
    """Run COMMAND behind an emulated link and exit with its status.

    With the engines kernel and tun, COMMAND has its own network, where 127.0.0.1 and the port of each --upstream lead
    through the link to that server. The proxy engine has no network: write {link} where COMMAND takes the server's
    address.
    """
    import asyncio

    from rich.console import Console

    from outrider_netsim.profiles.builtin import profile_named
    from outrider_netsim.profiles.outages import in_order, parse_outage

    with exit_on_error():
        shaped = profile_named(profile)
        planned = in_order([*shaped.outages, *map(parse_outage, outage or [])])
        options = RunOptions(
            replace(shaped, outages=tuple(planned)),
            _engines(engine, command),
            tuple(_server(text) for text in upstream or [DEFAULT_UPSTREAM]),
            seed,
            tuple(command),
        )
        status = asyncio.run(_run(options, Console(quiet=True) if quiet else errors))
    raise typer.Exit(status)


async def _run(options: RunOptions, console: Console) -> int:
    from outrider_netsim.link import Link

    # The others are cut from here, to print a line each time.
    held = tuple(outage for outage in options.profile.outages if outage.hold)
    link = Link(replace(options.profile, outages=held), str(options.upstreams[0]), options.engines, options.seed)
    try:
        await link.start()
    except EngineError as error:
        raise _with_remedy(error, options) from None
    try:
        _introduce(link, options, console)
        async with _outages(link, options, console):
            status = await link.run(options.command, options.upstreams)
        _print(console, totals(link.stats))
    except OSError as error:
        status = _not_executed(options.command[0], error)
    finally:
        await link.aclose()
    return status


@contextlib.asynccontextmanager
async def _outages(link: Link, options: RunOptions, console: Console) -> AsyncIterator[None]:
    """Apply and print the planned outages while the command runs."""
    import asyncio

    from outrider_netsim.cli.link_controls import LinkControls
    from outrider_netsim.profiles.outages import run_outages

    dropping = [outage for outage in options.profile.outages if not outage.hold]
    planned = asyncio.create_task(run_outages(LinkControls(link, console), dropping))
    try:
        yield
    finally:
        planned.cancel()
        await asyncio.gather(planned, return_exceptions=True)


def _introduce(link: Link, options: RunOptions, console: Console) -> None:
    shown = f"{link.profile.name}, mean round trip {link.profile.round_trip_ms:.1f} ms"
    _print(console, f"{shown}; engine {link.engine}: {link.why}")
    if link.engine == "proxy" and not _names_link(options.command):
        _print(console, f"only what connects to {link.address} (OUTRIDER_LINK_ADDRESS) goes through the link")


def totals(stats: LinkStats) -> str:
    """Return a link's counters in words."""
    return f"{stats.connections} connections; up {_counted(stats.up)}; down {_counted(stats.down)}"


def _counted(path: PathStats) -> str:
    gone = {"lost": path.lost, "in outages": path.dropped_by_outage, "by the full queue": path.dropped_by_queue}
    losses = "".join(f", {number:,} {how}" for how, number in gone.items() if number)
    return f"{path.bytes_out:,} bytes in {path.packets_out:,} packets{losses}"


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
