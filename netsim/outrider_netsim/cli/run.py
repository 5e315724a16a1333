"""`outrider-netsim run -- COMMAND`: run a command behind an emulated link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from outrider_netsim.cli.link_options import TRAFFIC_PANEL, OpenLinkOptions, introduction, link_profile, totals
from outrider_netsim.cli.terminal import errors
from outrider_netsim.core.addresses import Address, check_port, parse_address
from outrider_netsim.core.engine_names import DEFAULT_UPSTREAM, PLACEHOLDER, WITH_NETWORK, EngineChoice, EngineName
from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_proto.options.command import with_options
from outrider_proto.options.fields import Flag

if TYPE_CHECKING:
    from rich.console import Console

    from outrider_netsim.link import Link

NOT_EXECUTABLE_EXIT, NOT_FOUND_EXIT = 126, 127  # as in shells

app = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(OpenLinkOptions):
    """The link, what is behind it, and how often the command runs."""

    upstream: Annotated[
        tuple[str, ...],
        Flag(
            f"Address of a server behind the link; repeatable. Default: {DEFAULT_UPSTREAM}.",
            panel=TRAFFIC_PANEL,
            metavar="HOST:PORT",
        ),
    ] = ()
    clients: Annotated[
        int,
        Flag(
            "How often to run COMMAND, all at once over the one link; OUTRIDER_CLIENT tells each its number.",
            panel=TRAFFIC_PANEL,
        ),
    ] = 1
    quiet: Annotated[bool, Flag("Print nothing about the link.", expert=True)] = False

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ProfileError(f"clients={self.clients}: need at least 1")


@app.command(no_args_is_help=True, context_settings={"allow_interspersed_args": False})
@with_options(RunOptions)
def run(
    options: RunOptions,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="Command to run, with its arguments.")
    ] = None,
) -> None:
    """Run COMMAND behind an emulated link and exit with its status.

    With the engines kernel and tun, COMMAND has its own network, where 127.0.0.1 and the port of each --upstream, or of
    any server on this machine, lead over the link. The proxy engine has no network: write {link} where COMMAND takes
    the server's address.
    """
    import asyncio

    from rich.console import Console

    if not command:
        raise ProfileError("COMMAND is missing: write it after --")
    raise typer.Exit(asyncio.run(_run(options, command, Console(quiet=True) if options.quiet else errors)))


async def _run(options: RunOptions, command: Sequence[str], console: Console) -> int:
    from outrider_netsim.cli.control import controllable
    from outrider_netsim.cli.link_controls import LinkControls, announced_outages, link_of, reported

    profile = link_profile(options, options.outage, options.trace)
    upstreams = [_server(text) for text in options.upstream or [DEFAULT_UPSTREAM]]
    engines = _engines(options.engine, command)
    link = link_of(options, profile, str(upstreams[0]), engines)
    try:
        await link.start()
    except EngineError as error:
        raise _with_remedy(error, engines) from None
    try:
        for line in profile.source.splitlines() if options.trace else ():
            _print(console, line)
        _introduce(link, command, console)
        controls = LinkControls(link, console)
        async with (
            reported(options.report, controls, link) as report,
            controllable(controls, link, console),
            announced_outages(controls, link, profile.outages, options.outage),
        ):
            try:
                status = await link.run(command, upstreams, clients=options.clients)
            except OSError as error:
                status = _not_executed(command[0], error)
            report["exit_status"] = status
            if not await link.drained():
                _print(console, "the link ends before all that COMMAND has sent has arrived")
        _print(console, totals(link.stats, link.profile))
        if link.stayed:
            ports = ", ".join(f"127.0.0.1:{port} ({number})" for port, number in sorted(link.stayed.items()))
            _print(console, f"connections that did not pass the link: {ports}; --upstream names a server behind it")
    finally:
        await link.aclose()
    return status


def _introduce(link: Link, command: Sequence[str], console: Console) -> None:
    _print(console, introduction(link))
    if link.engine == "proxy" and not _names_link(command):
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


def _with_remedy(error: EngineError, engines: tuple[EngineName, ...]) -> EngineError:
    if engines != WITH_NETWORK:
        return error
    return EngineError(
        f"{error}. Or write {PLACEHOLDER} where COMMAND takes the server's address: then the proxy engine will do"
    )


def _not_executed(command: str, error: OSError) -> int:
    """Return the exit status for a command that cannot be executed. Raises EngineError for other failures."""
    match error:
        case FileNotFoundError():
            status = NOT_FOUND_EXIT
        case OSError(filename=str()):
            status = NOT_EXECUTABLE_EXIT
        case _:
            raise EngineError(str(error)) from None
    errors.print(f"{command}: {error.strerror}", soft_wrap=True, markup=False)
    return status


def _print(console: Console, text: str) -> None:
    console.print(f"outrider-netsim: {text}", soft_wrap=True, markup=False)
