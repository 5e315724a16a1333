"""The chat's emulated link. It runs in an event loop of its own, since the chat blocks while it reads a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anyio.from_thread import BlockingPortal, start_blocking_portal

from outrider_client.connection.emulated import EmulatedLink, emulated_link


@dataclass(frozen=True, slots=True)
class ChatLink:
    """A running link, in the event loop of `portal`: connect to `emulated.link.address`."""

    emulated: EmulatedLink
    portal: BlockingPortal

    def change(self, to: str) -> None:
        """Cut or restore the link, or give it the profile of that name. Raises UsageError."""
        # On the link's own loop: its state is not safe to change from this thread.
        match to:
            case "cut":
                self.portal.call(self.emulated.link.cut)
            case "restore":
                self.portal.call(self.emulated.link.restore)
            case profile:
                self.portal.call(self.emulated.change, profile)


@contextmanager
def chat_link(profile: str, server: str) -> Iterator[ChatLink]:
    """Emulate a link to `server`. Raises UsageError if this machine cannot."""
    with (
        start_blocking_portal(name="outrider link") as portal,
        portal.wrap_async_context_manager(emulated_link(profile, server)) as emulated,
    ):
        yield ChatLink(emulated, portal)
