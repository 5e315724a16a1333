"""The address that clients connect to: an emulated link or the server itself, and the traffic through it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outrider_netsim import EngineChoice, EngineError, Link, Profile, ProfileError, profile_named
from outrider_proto.errors import UsageError

NO_LINK = "none"  # the profile's name for both sides on one device


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """IP packets and bytes that entered the link so far, acknowledgements included."""

    packets_up: int = 0
    packets_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def since(self, before: LinkTraffic) -> LinkTraffic:
        return LinkTraffic(
            self.packets_up - before.packets_up,
            self.packets_down - before.packets_down,
            self.bytes_up - before.bytes_up,
            self.bytes_down - before.bytes_down,
        )


@dataclass(frozen=True, slots=True)
class LinkEndpoint:
    """The address that clients connect to, and the link behind it.

    `engine` and `why`: what makes the link; `traffic` returns None without a link.
    """

    address: str
    traffic: Callable[[], LinkTraffic | None] = lambda: None
    engine: str = NO_LINK
    why: str = "both sides on one device"


def profile_or_none(name: str) -> Profile | None:
    """Return the named profile; None for `none`. Raises UsageError."""
    try:
        return None if name == NO_LINK else profile_named(name)
    except ProfileError as error:
        raise UsageError(f"{error}; none for no link") from None


@asynccontextmanager
async def open_link(
    profile: Profile | None, server: str, engine: EngineChoice, seed: int
) -> AsyncIterator[LinkEndpoint]:
    """Put a link in front of the server while the context lasts.

    Raises UsageError where this machine cannot emulate it.
    """
    if profile is None:
        yield LinkEndpoint(server)
        return
    # Not `async with`: only an EngineError of the start is the user's, not one raised inside the context.
    link = Link(profile, server, engine, seed)
    try:
        await link.start()
    except EngineError as error:
        raise UsageError(f"engine={engine}: {error}") from None
    try:
        yield LinkEndpoint(link.address, lambda: _traffic(link), link.engine, link.why)
    finally:
        await link.aclose()


def _traffic(link: Link) -> LinkTraffic:
    stats = link.stats
    return LinkTraffic(stats.up.packets_in, stats.down.packets_in, stats.up.bytes_in, stats.down.bytes_in)
