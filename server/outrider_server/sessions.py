"""The sessions a server knows: who owns each, and how long one without a stream is remembered. No clock, no I/O.

(new) --add--> owned by a stream --release--> parked until now + ttl --expire--> forgotten
                    ^    `--take (takeover)--.        |
                    `------------- take -------------'
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from outrider_proto.errors import Reason, Refusal
from outrider_server.held import Held


@dataclass(slots=True, eq=False)
class Session:
    """One conversation and what is held of it. `owner` is the stream that may speak for it, None while parked."""

    id: str
    held: Held
    tap: str  # fingerprint of the features it was opened with, empty for none
    owner: object | None
    expires_at: float = 0.0


class SessionTable:
    """Sessions by id."""

    def __init__(self, ttl_s: float, max_sessions: int) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def make_room(self, now: float) -> None:
        """Make sure that one more fits, at the cost of the parked one nearest its end. Raises Refusal SERVER_FULL."""
        self.expire(now)
        if len(self._sessions) < self._max_sessions:
            return
        parked = [session for session in self._sessions.values() if session.owner is None]
        if not parked:
            raise Refusal(Reason.SERVER_FULL, f"{self._max_sessions} sessions are in use; try again later")
        self.forget(min(parked, key=lambda session: session.expires_at))

    def add(self, held: Held, tap: str, owner: object) -> Session:
        """A new session; room must have been made."""
        session = Session(secrets.token_hex(16), held, tap, owner)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, now: float) -> Session | None:
        """A session that is still remembered."""
        self.expire(now)
        return self._sessions.get(session_id)

    def take(self, session: Session, owner: object) -> object | None:
        """Make `owner` the one that speaks for it; answers the former one."""
        former, session.owner = session.owner, owner
        return former

    def release(self, session: Session, owner: object, now: float) -> None:
        """Park it, unless another stream has taken it over."""
        if session.owner is owner:
            session.owner = None
            session.expires_at = now + self._ttl_s

    def forget(self, session: Session) -> None:
        """Drop it; harmless when it is gone already."""
        self._sessions.pop(session.id, None)

    def expire(self, now: float) -> None:
        """Forget parked sessions whose time has come."""
        for session in [s for s in self._sessions.values() if s.owner is None and s.expires_at <= now]:
            self.forget(session)
