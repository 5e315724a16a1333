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


_FOLLOWING: dict[LinkState, tuple[LinkState, ...]] = {
    LinkState.CONNECTING: (LinkState.ONLINE, LinkState.OFFLINE, LinkState.CLOSED),
    LinkState.ONLINE: (LinkState.OFFLINE, LinkState.CLOSED),
    LinkState.OFFLINE: (LinkState.RESUMING, LinkState.CLOSED),
    LinkState.RESUMING: (LinkState.OFFLINE, LinkState.ONLINE, LinkState.CLOSED),
    LinkState.CLOSED: (),
}


class IllegalTransition(RuntimeError):
    """Raised for a state that cannot follow the current one: a bug of ours."""


def check_transition(state: LinkState, following: LinkState) -> None:
    """Raise IllegalTransition for what the table does not list."""
    if following not in _FOLLOWING[state]:
        raise IllegalTransition(f"link {state.value}: cannot be {following.value}")
