"""The sessions a server knows: their owners, and how long one without a stream is kept. No clock, no I/O.

(new) --add--> owned by a stream --release, or idle while others want its place--> parked --ttl, too many--> forgotten
                    ^    `--take (takeover)--.                                       |
                    `------------------------- take --------------------------------'

Two bounds: so many sessions have a stream, a place each, and so many are parked. Whoever wants a place that is not free
gets that of an idle session, which is parked: of the holder with the most places first. So only sessions at work fill a
server. Of too many parked sessions one is forgotten, of the holder with the most: who opens many displaces their own.
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
    def is_busy(self) -> bool:
        """True while requests are under way, or their features have not left."""
        ...

    def fail(self, refusal: Refusal) -> None:
        """End the stream."""
        ...


@dataclass(slots=True, eq=False)
class Session:
    """One session and its tokens."""

    id: str
    sequence: Sequence
    tap: str  # fingerprint of the features it was opened with, empty for none
    owner: Owner | None  # the stream attached to it, None while parked
    active_at: float  # when it was opened or taken up, or had its last request or reply
    has_asked: bool = False  # it had any request
    expires_at: float = 0.0
    principal: Principal = ANONYMOUS  # who opened it; hidden from all others


class SessionTable:
    """Sessions by id. `max_sessions` with a stream, and `parked_sessions` without one.

    `client_sessions`: the most with a stream of one holder whose quota says nothing else; None: half of all.
    """

    def __init__(
        self,
        ttl_s: float,
        max_sessions: int,
        parked_sessions: int,
        on_forget: Callable[[Session], None],
        client_sessions: int | None = None,
    ) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._parked_sessions = parked_sessions
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

    def make_room_for(self, principal: Principal, now: float) -> None:
        """Make a place free for one more session of the principal, parking an idle one if need be.

        Raises Refusal: OVER_QUOTA where the principal has all the places it may have, else SERVER_FULL.
        """
        placed = [session for session in self._sessions.values() if session.owner is not None]
        count = Counter(session.principal.holder for session in placed)
        own = count[principal.holder]
        idle = [session for session in placed if _is_idle(session, now)]
        if self.check_quota(principal, now):
            self._park_one([s for s in idle if s.principal.holder == principal.holder], placed, now)
            return  # its place is free now
        if len(placed) < self._max_sessions or self._park_one(idle, placed, now):
            return
        # Whoever opens sessions faster than they become idle, and uses none, would keep all others out.
        unused = [s for s in placed if _is_unused(s) and count[s.principal.holder] > own + 1]
        if not self._park_one(unused, placed, now):
            raise Refusal(Reason.SERVER_FULL, f"{self._max_sessions} sessions are in use; try again later")

    def check_quota(self, principal: Principal, now: float) -> bool:
        """Return whether the principal's next session has to take the place of an idle one of its own.

        Raises Refusal OVER_QUOTA where it has all the places it may have, and works in all of them.
        """
        most = self._client_sessions if principal.quota.sessions is None else principal.quota.sessions
        own = [s for s in self._sessions.values() if s.owner is not None and s.principal.holder == principal.holder]
        if not principal.holder or len(own) < most:
            return False
        if not any(_is_idle(session, now) for session in own):
            whose = "this key" if principal.payer else "your address"
            message = f"{whose} may have {most} sessions at work at once, and has them: end one, or try again later"
            raise Refusal(Reason.OVER_QUOTA, message, retry_after_s=_FULL_S)
        return True

    def add(self, sequence: Sequence, tap: str, owner: Owner, now: float) -> Session:
        """Add a new session; room must have been made."""
        # Not guessable: to know the id is all that a resume needs.
        session = Session(secrets.token_hex(16), sequence, tap, owner, now)
        self._sessions[session.id] = session
        self.expire(now)
        return session

    def find(self, session_id: str, now: float, principal: Principal = ANONYMOUS) -> Session | None:
        """Return a session that is still kept and is the principal's own."""
        self.expire(now)
        session = self._sessions.get(session_id)
        # Another principal's session counts as unknown: nobody learns that it exists.
        return session if session is not None and session.principal.payer == principal.payer else None

    def forget_where(self, which: Callable[[Principal], bool]) -> None:
        """Drop the sessions whose principals match."""
        for session in [s for s in self._sessions.values() if which(s.principal)]:
            self.forget(session)

    def take(self, session: Session, owner: Owner, now: float) -> Owner | None:
        """Attach `owner` to the session; return the former one. Room must have been made for a parked session."""
        session.active_at = now
        former, session.owner = session.owner, owner
        session.sequence.parked = False
        self.expire(now)
        return former

    def release(self, session: Session, owner: Owner, now: float) -> None:
        """Park the session, unless another stream has taken it over."""
        if session.owner is owner:
            self._park(session, now)
            self.expire(now)

    def forget(self, session: Session) -> None:
        """Drop a session. Safe to call twice."""
        if self._sessions.pop(session.id, None) is not None:
            self._on_forget(session)

    def expire(self, now: float) -> None:
        """Drop parked sessions whose time is over, and those that are too many."""
        for session in [s for s in self._sessions.values() if s.owner is None and s.expires_at <= now]:
            self.forget(session)
        parked = [session for session in self._sessions.values() if session.owner is None]
        while len(parked) > self._parked_sessions:
            parked.remove(first := _first_to_go(parked, parked))
            self.forget(first)

    def _park_one(self, candidates: list[Session], placed: list[Session], now: float) -> bool:
        """Take the place of one of the candidates, who have streams; return whether there are any."""
        if not candidates:
            return False
        session = _first_to_go(candidates, placed)
        owner = session.owner
        # Not release(): the place may be for a parked session, which must not be dropped as one too many.
        self._park(session, now)
        if owner is not None:
            owner.fail(Refusal(Reason.STALLED, "this session was idle while others wait: connect and resume"))
        return True

    def _park(self, session: Session, now: float) -> None:
        session.owner = None
        session.sequence.parked = True
        session.expires_at = now + self._ttl_s


def _first_to_go(candidates: Iterable[Session], among: Iterable[Session]) -> Session:
    """Return the session that is missed least: of the holder with the most, one without a text, the oldest."""
    count = Counter(session.principal.holder for session in among)
    return min(candidates, key=lambda s: (-count[s.principal.holder], s.has_asked, s.active_at))


def _is_idle(session: Session, now: float) -> bool:
    return session.owner is not None and not session.owner.is_busy and now - session.active_at >= _IDLE_S


def _is_unused(session: Session) -> bool:
    return session.owner is not None and not session.owner.is_busy and not session.has_asked
