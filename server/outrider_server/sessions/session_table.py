"""The sessions a server knows: their owners, and how long one without a stream is kept. No clock, no I/O.

(new) --add--> owned by a stream --release--> parked until now + ttl --expire--> forgotten
                    ^    `--take (takeover)--.        |
                    `------------- take -------------'

A new session that finds no place gets that of a parked one, or of one whose stream has been idle for long: of the
holder with the most sessions first. So only sessions at work fill a server, and who opens many displaces their own.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from outrider_proto.errors import Reason, Refusal
from outrider_server.engine.sequence import Sequence
from outrider_server.security.principal import ANONYMOUS, Principal

_FULL_S = 5.0  # retry hint for a client whose key has all its sessions
_IDLE_S = 10.0  # without a request: a client that drafts, or writes for its own part, is back before that


class Owner(Protocol):
    """The stream that a session belongs to."""

    @property
    def num_requests(self) -> int:
        """Number of requests under way."""
        ...

    def fail(self, refusal: Refusal) -> None:
        """End the stream."""
        ...


@dataclass(slots=True, eq=False)
class Session:
    """One session and its tokens. `owner` is the stream attached to it, None while parked.

    `active_at`: when it was opened or taken up, or had its last request or reply; `has_asked`: it had any request.
    """

    id: str
    sequence: Sequence
    tap: str  # fingerprint of the features it was opened with, empty for none
    owner: Owner | None
    active_at: float
    has_asked: bool = False
    expires_at: float = 0.0
    principal: Principal = ANONYMOUS  # who opened it; hidden from all others


class SessionTable:
    """Sessions by id. `client_sessions`: the most of one holder whose quota says nothing else; None: half of all."""

    def __init__(
        self, ttl_s: float, max_sessions: int, on_forget: Callable[[Session], None], client_sessions: int | None = None
    ) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._client_sessions = max(max_sessions // 2, 1) if client_sessions is None else client_sessions
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
        """Make room for one more, dropping a parked or idle session if need be. Raises Refusal SERVER_FULL."""
        self.expire(now)
        if len(self._sessions) >= self._max_sessions and not self._drop_one(self._sessions.values(), now):
            raise Refusal(Reason.SERVER_FULL, f"{self._max_sessions} sessions are in use; try again later")

    def add(self, sequence: Sequence, tap: str, owner: Owner, now: float) -> Session:
        """Add a new session; room must have been made."""
        # Not guessable: to know the id is all that a resume needs.
        session = Session(secrets.token_hex(16), sequence, tap, owner, now)
        self._sessions[session.id] = session
        return session

    def find(self, session_id: str, now: float, principal: Principal = ANONYMOUS) -> Session | None:
        """Return a session that is still kept and is the principal's own."""
        self.expire(now)
        session = self._sessions.get(session_id)
        # Another principal's session counts as unknown: nobody learns that it exists.
        return session if session is not None and session.principal.payer == principal.payer else None

    def make_room_for(self, principal: Principal, now: float) -> None:
        """Make room within what the principal may have, as make_room(). Raises Refusal OVER_QUOTA."""
        most = self._client_sessions if principal.quota.sessions is None else principal.quota.sessions
        self.expire(now)
        own = [session for session in self._sessions.values() if session.principal.holder == principal.holder]
        if not principal.holder or len(own) < most or self._drop_one(own, now):
            return
        whose = "this key" if principal.payer else "your address"
        message = f"{whose} may have {most} sessions at once, and has them: end one, or try again later"
        raise Refusal(Reason.OVER_QUOTA, message, retry_after_s=_FULL_S)

    def forget_where(self, which: Callable[[Principal], bool]) -> None:
        """Drop the sessions whose principals match."""
        for session in [s for s in self._sessions.values() if which(s.principal)]:
            self.forget(session)

    def take(self, session: Session, owner: Owner, now: float) -> Owner | None:
        """Attach `owner` to the session; return the former one."""
        session.active_at = now
        former, session.owner = session.owner, owner
        session.sequence.parked = False
        return former

    def release(self, session: Session, owner: Owner, now: float) -> None:
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

    def _drop_one(self, candidates: Iterable[Session], now: float) -> bool:
        """Drop the session that is missed least, if one may go."""
        candidates = [session for session in candidates if _is_idle(session, now)]
        if not candidates:
            return False
        count = Counter(session.principal.holder for session in self._sessions.values())

        def order(session: Session) -> tuple[int, bool, bool, float]:
            return -count[session.principal.holder], session.owner is not None, session.has_asked, session.active_at

        session = min(candidates, key=order)
        owner = session.owner
        self.forget(session)
        if owner is not None:
            owner.fail(Refusal(Reason.STALLED, "this session was idle while others wait: connect and resume"))
        return True


def _is_idle(session: Session, now: float) -> bool:
    return session.owner is None or (session.owner.num_requests == 0 and now - session.active_at >= _IDLE_S)
