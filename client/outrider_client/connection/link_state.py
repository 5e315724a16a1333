"""The state of the link as a table: which state follows which when something happens to it.

    start -> CONNECTING --opened--> ONLINE --lost--> OFFLINE --connected--> RESUMING --caught up--> ONLINE
                  |                                    ^  ^                    |
                  +------- failed (offline start) -----+  +------- lost -------+

Rules: nothing is verified but in ONLINE and RESUMING; the drafter writes alone only in OFFLINE; RESUMING lasts until
the server holds the session's tokens again and has judged the unverified ones; CLOSED is final.
"""

from __future__ import annotations

from enum import Enum


class LinkState(Enum):
    """Where the link to the server stands."""

    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"
    RESUMING = "resuming"
    CLOSED = "closed"


class LinkStateEvent(Enum):
    """What can happen to a link."""

    OPENED = "opened"
    LOST = "lost"
    CONNECTED = "connected"
    CAUGHT_UP = "caught up"
    CLOSED = "closed"


_TABLE: dict[tuple[LinkState, LinkStateEvent], LinkState] = {
    (LinkState.CONNECTING, LinkStateEvent.OPENED): LinkState.ONLINE,
    (LinkState.CONNECTING, LinkStateEvent.LOST): LinkState.OFFLINE,
    (LinkState.ONLINE, LinkStateEvent.LOST): LinkState.OFFLINE,
    (LinkState.OFFLINE, LinkStateEvent.CONNECTED): LinkState.RESUMING,
    (LinkState.RESUMING, LinkStateEvent.LOST): LinkState.OFFLINE,
    (LinkState.RESUMING, LinkStateEvent.CAUGHT_UP): LinkState.ONLINE,
}


class IllegalTransition(RuntimeError):
    """A bug of ours: something happened that cannot happen in this state."""


def next_state(state: LinkState, happening: LinkStateEvent) -> LinkState:
    """Raises IllegalTransition for what the table does not list."""
    if happening is LinkStateEvent.CLOSED and state is not LinkState.CLOSED:
        return LinkState.CLOSED
    following = _TABLE.get((state, happening))
    if following is None:
        raise IllegalTransition(f"link {state.value}: cannot be {happening.value}")
    return following
