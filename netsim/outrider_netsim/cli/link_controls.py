"""Create the link that a command keeps open, and cut and restore it, with a line on the console each time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import sys
import tomllib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from outrider_netsim.cli.link_options import OpenLinkOptions
from outrider_netsim.cli.terminal import errors
from outrider_netsim.core.addresses import FREE_PORT, Address
from outrider_netsim.core.async_resource import cancel_all
from outrider_netsim.core.engine_names import WAYS, EngineChoice, EngineName, Way
from outrider_netsim.core.errors import EngineError, ProfileError
from outrider_netsim.link import Link
from outrider_netsim.profiles.outages import Outage, OutageSwitch, parse_outage, run_outages
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.profiles.trace_files import write_text


class LinkControls:
    """Cuts and restores `link`, prints that with the seconds since its creation, and remembers it.

    A direction is cut while anyone has it cut: `by_hand`, or an outage with a switch of its own.
    """

    def __init__(self, link: Link, console: Console) -> None:
        self._link = link
        self._console = console
        self._started_at = asyncio.get_running_loop().time()
        self._out: dict[str, frozenset[Way]] = {}  # by who has cut it
        self.changes: list[dict[str, object]] = []  # as happened
        self.by_hand = self.switch("hand")

    def switch(self, who: str) -> OutageSwitch:
        return OutageSwitch(partial(self._put_out, who))

    def _put_out(self, who: str, ways: frozenset[Way]) -> None:
        self._out[who] = ways
        before, after = self._link.cut_ways, frozenset[Way]().union(*self._out.values())
        if gone := [way for way in WAYS if way in after - before]:
            self._link.cut(gone)
            self._note("cut", "bold red", gone)
        if back := [way for way in WAYS if way in before - after]:
            self._link.restore(back)
            self._note("restored", "bold green", back)

    def set(self, profile: Profile) -> None:
        self._link.set(profile)
        self._note("set", "bold", WAYS, profile.name)

    def toggle(self) -> None:
        """Handle Enter, or the end of standard input."""
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        elif self._out.get("hand"):
            self.by_hand.restore()
        else:
            self.by_hand.cut()

    def _note(self, what: str, style: str, ways: Sequence[Way], detail: str = "") -> None:
        at = asyncio.get_running_loop().time() - self._started_at
        change = {"seconds": round(at, 3), "change": what, "ways": list(ways)}
        self.changes.append(change | ({"profile": detail} if detail else {}))
        way = "" if len(ways) == len(WAYS) else f" {ways[0]}"
        text = f"{at:8.2f} s  [{style}]link {what}{way}[/]{f': {escape(detail)}' if detail else ''}"
        self._console.print(text, soft_wrap=True, markup=True)


def link_of(
    options: OpenLinkOptions,
    profile: Profile,
    upstream: str,
    engine: EngineChoice | Sequence[EngineName],
    listen: Address = FREE_PORT,
) -> Link:
    """Create the link, whose packets `announced_outages` drops; outages that hold packets are its own."""
    return Link(
        replace(profile, outages=tuple(outage for outage in profile.outages if outage.hold)),
        upstream,
        engine,
        options.seed,
        host=listen.host,
        port=listen.port,
        congestion=options.congestion,
        pcap=options.pcap,
        packet_log=options.packet_log,
    )


@contextlib.asynccontextmanager
async def announced_outages(
    controls: LinkControls, link: Link, planned: Sequence[Outage], texts: Sequence[str]
) -> AsyncIterator[None]:
    """Apply and print the outages that drop packets, from now or an answer on, until the end of the block."""
    from_answer = [replace(outage, after_answer=False) for outage in map(parse_outage, texts) if outage.after_answer]
    tasks = [asyncio.create_task(run_outages(controls.switch("plan"), [each for each in planned if not each.hold]))]
    if from_answer:
        tasks.append(asyncio.create_task(_after_answer(controls, link, from_answer)))
    try:
        yield
    finally:
        await cancel_all(tasks)


async def _after_answer(controls: LinkControls, link: Link, outages: Sequence[Outage]) -> None:
    await link.answered()
    await run_outages(controls.switch("answer"), outages)


@contextlib.asynccontextmanager
async def reported(file: Path | None, controls: LinkControls, link: Link) -> AsyncIterator[dict[str, object]]:
    """Write a report at the end of the block, with what the block adds to it, and say so where that fails.

    Raises ProfileError at the start.
    """
    added: dict[str, object] = {}
    if file is None:
        yield added
        return
    write_text(file, "", f"--report {file}")
    started = datetime.now(UTC)
    circumstances = {"command": sys.argv, "started": started.isoformat(), **_circumstances(link)}
    try:
        yield added
    except EngineError as error:
        added["error"] = str(error)
        raise
    finally:
        took = {"seconds": (datetime.now(UTC) - started).total_seconds(), "changes": controls.changes}
        report = {**circumstances, **took, **_counts(link), **added}
        try:
            write_text(file, json.dumps(report, indent=1) + "\n", f"--report {file}")
        except ProfileError as error:  # the command has ended, and its status counts
            errors.print(f"outrider-netsim: {error}", soft_wrap=True, markup=False)


def _circumstances(link: Link) -> dict[str, object]:
    from outrider_netsim.profiles.profile_files import profile_text

    versions = {"outrider": version("outrider"), "python": platform.python_version(), "system": platform.platform()}
    return {
        "versions": versions,
        "engine": link.engine,
        "why": link.why,
        "congestion": link.congestion,
        "seed": link.seed,
        "seed_is_honored": link.seed_is_honoured,
        "profile": tomllib.loads(profile_text(link.profile)),
    }


def _counts(link: Link) -> dict[str, object]:
    stayed = {str(port): number for port, number in link.stayed.items()}
    try:
        return {**asdict(link.stats), "not_through_the_link": stayed}
    except EngineError as error:
        # The engine has ended by itself.
        return {"error": str(error)}
