"""The sessions a server knows: their owners, and how long one without a stream is kept. No clock, no I/O.

(new) --add--> owned by a stream --release--> parked until now + ttl --expire--> forgotten
                    ^    `--take (takeover)--.        |
                    `------------- take -------------'
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from outrider_proto.errors import Reason, Refusal
from outrider_server.engine.sequence import Sequence
from outrider_server.security.principal import ANONYMOUS, Principal

_FULL_S = 5.0  # retry hint for a client whose key has all its sessions


@dataclass(slots=True, eq=False)
class Session:
    """One session and its tokens. `owner` is the stream attached to it, None while parked."""

    id: str
    sequence: Sequence
    tap: str  # fingerprint of the features it was opened with, empty for none
    owner: object | None
    expires_at: float = 0.0
    principal: Principal = ANONYMOUS  # who opened it; hidden from all others


class SessionTable:
    """Sessions by id."""

    def __init__(self, ttl_s: float, max_sessions: int, on_forget: Callable[[Session], None]) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._on_forget = on_forget  # called once for each session
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_parked(self) -> int:
        """Number of sessions without a stream; from any thread."""
        # list(): the event loop may add sessions while another thread counts.
        return sum(session.owner is None for session in list(self._sessions.values()))

    def make_room(self, now: float) -> None:
        """Make room for one more, dropping the parked session nearest its end if need be.

        Raises Refusal SERVER_FULL.
        """
        self.expire(now)
        if len(self._sessions) < self._max_sessions:
            return
        parked = [session for session in self._sessions.values() if session.owner is None]
        if not parked:
            raise Refusal(Reason.SERVER_FULL, f"{self._max_sessions} sessions are in use; try again later")
        self.forget(min(parked, key=lambda session: session.expires_at))

    def add(self, sequence: Sequence, tap: str, owner: object) -> Session:
        """Add a new session; room must have been made."""
        # Not guessable: to know the id is all that a resume needs.
        session = Session(secrets.token_hex(16), sequence, tap, owner)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, now: float, principal: Principal = ANONYMOUS) -> Session | None:
        """Return a session that is still kept and is the principal's own."""
        self.expire(now)
        session = self._sessions.get(session_id)
        # Another principal's session counts as unknown: nobody learns that it exists.
        return session if session is not None and session.principal.payer == principal.payer else None

    def make_room_for(self, principal: Principal, now: float) -> None:
        """Make room within the principal's quota, as make_room(). Raises Refusal OVER_QUOTA."""
        most = principal.quota.sessions
        if most is None:
            return
        self.expire(now)
        own = [session for session in self._sessions.values() if session.principal.payer == principal.payer]
        if len(own) < most:
            return
        parked = [session for session in own if session.owner is None]
        if not parked:
            message = f"this key may have {most} sessions at once, and has them: end one, or try again later"
            raise Refusal(Reason.OVER_QUOTA, message, retry_after_s=_FULL_S)
        self.forget(min(parked, key=lambda session: session.expires_at))

    def forget_where(self, which: Callable[[Principal], bool]) -> None:
        """Drop the sessions whose principals match."""
        for session in [s for s in self._sessions.values() if which(s.principal)]:
            self.forget(session)

    def take(self, session: Session, owner: object) -> object | None:
        """Attach `owner` to the session; return the former one."""
        former, session.owner = session.owner, owner
        session.sequence.parked = False
        return former

    def release(self, session: Session, owner: object, now: float) -> None:
        """Park the session, unless another stream has taken it over."""
        if session.owner is owner:
            session.owner = None
            session.sequence.parked = True
            session.expires_at = now + self._ttl_s

    def forget(self, session: Session) -> None:
        """Drop a session. Safe to call twice."""
        if self._sessions.pop(session.id, None) is not None:
            self._on_forget(session)

    def expire(self, now: float) -> None:
        """Drop parked sessions whose time is over."""
        for session in [s for s in self._sessions.values() if s.owner is None and s.expires_at <= now]:
            self.forget(session)
