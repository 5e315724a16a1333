"""The link's state machine as a table.

    start -> CONNECTING --opened--> ONLINE --lost--> OFFLINE --connected--> RESUMING --caught up--> ONLINE
                  |                                    ^  ^                    |
                  +------- failed (offline start) -----+  +------- lost -------+

Rules: tokens are verified only in ONLINE and RESUMING; the drafter writes offline only in OFFLINE; RESUMING lasts until
the server holds the session's tokens again and has verified the unverified ones; CLOSED is final.
"""

from __future__ import annotations

from enum import Enum


class LinkState(Enum):
    """State of the link to the server."""

    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"
    RESUMING = "resuming"
    CLOSED = "closed"


class LinkStateEvent(Enum):
    """Event that may change the link's state."""

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
    """Raised for an event that cannot occur in the current state: a bug of ours."""


def next_state(state: LinkState, event: LinkStateEvent) -> LinkState:
    """Return the state after an event. Raises IllegalTransition for what the table does not list."""
    if event is LinkStateEvent.CLOSED and state is not LinkState.CLOSED:
        return LinkState.CLOSED
    following = _TABLE.get((state, event))
    if following is None:
        raise IllegalTransition(f"link {state.value}: cannot be {event.value}")
    return following
