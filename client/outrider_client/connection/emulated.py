"""An emulated link between this client and its server. The only module of the client that needs outrider_netsim."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from outrider_proto.errors import UsageError

if TYPE_CHECKING:
    from outrider_netsim import EngineChoice, Link, Profile


class EmulatedLink:
    """A running link: connect to `link.address` instead of to `server`."""

    def __init__(self, link: Link, server: str) -> None:
        self.server = server
        self.link = link

    def change(self, profile: str) -> None:
        """Switch to another profile. Raises UsageError for an unknown name."""
        self.link.set(link_profile(profile))

    @property
    def profiles(self) -> Sequence[str]:
        from outrider_netsim import PROFILES

        return tuple(PROFILES)

    @property
    def as_json(self) -> dict[str, object]:
        """State of the link as JSON, for the web page."""
        profile = self.link.profile.name
        names = [*self.profiles] if profile in self.profiles else [profile, *self.profiles]
        return {"profile": profile, "profiles": names, "engine": self.link.engine, "cut": self.link.is_cut}

    @property
    def summary(self) -> str:
        """State of the link in a few words, for a terminal."""
        cut = ", cut" if self.link.is_cut else ""
        return f"emulated: {self.link.profile.name} ({self.link.engine}){cut}"


@contextlib.asynccontextmanager
async def emulated_link(profile: str, server: str, engine: EngineChoice = "auto") -> AsyncIterator[EmulatedLink]:
    """Run an emulated link to `server` while the context is open. Raises UsageError if that is impossible here."""
    of_link = link_profile(profile)
    from outrider_netsim import EngineError, Link

    link = Link(of_link, server, engine)
    try:
        await link.start()
    except (EngineError, OSError) as error:
        raise UsageError(f"profile={profile}: {error}") from error
    async with contextlib.aclosing(link):
        yield EmulatedLink(link, server)


def link_profile(name: str) -> Profile:
    """Return the profile of that name. Raises UsageError, also where links cannot be emulated."""
    try:
        from outrider_netsim import profile_named
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'outrider[netsim]'") from error
    return profile_named(name)
