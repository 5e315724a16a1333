"""The reading half of one client's stream: takes its frames in order, finds its session, and submits its requests.

For the event loop; replies leave by the StreamWriter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.schema_compiler import SchemaQueue
from outrider_drafters.contracts.tap import Tap
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_proto.errors import Reason, Refusal, Violation
from outrider_proto.frames import (
    Cancel,
    ClientFrame,
    Close,
    Decode,
    Draft,
    Open,
    Opened,
    Ping,
    Pong,
    Sampling,
    ServerDescription,
)
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.memory import KVMemory
from outrider_server.scheduling.feature_feed import FeatureFeed
from outrider_server.scheduling.reply_poster import Reply, ReplyPoster, ReplyRoute
from outrider_server.scheduling.request import Request, new_request
from outrider_server.scheduling.request_queues import PrefixInfo, PrefixQuery
from outrider_server.security.principal import Principal, Scope
from outrider_server.security.rate_limit import QuotaUsage, RateLimiter
from outrider_server.sessions.frame_checks import check_drafting, check_open, check_tokens
from outrider_server.sessions.session_table import Session, SessionTable
from outrider_server.sessions.stream_writer import StreamWriter

_log = logging.getLogger(__name__)
_SCHEMA_ROWS = 256  # that a schema pays for as it is compiled


@dataclass(frozen=True, slots=True, eq=False)
class ServerContext:
    """State that all streams of a server share."""

    description: ServerDescription
    taps: Mapping[str, Tap]  # by fingerprint
    drafters: Mapping[str, Drafter]  # by the fingerprint of the features they read
    memory: KVMemory
    sessions: SessionTable
    submit: Callable[[Request | PrefixQuery | FeatureFeed], None]  # to the engine thread
    replies: ReplyPoster  # from it
    clock: Callable[[], float]
    max_row_bytes: int  # of features that wait in one stream
    padded_width: int = 0  # of features, where a larger target is emulated
    schemas: SchemaQueue | None = None  # of the target's tokens


class StreamReader:
    """Reads one stream, from its first frame to its end: run(), then hang_up(), then release()."""

    def __init__(self, server: ServerContext, stream: StreamWriter, usage: QuotaUsage | None) -> None:
        self._server = server
        self._stream = stream
        self._rate_limiter = RateLimiter(usage, server.submit)
        self._feed: FeatureFeed | None = None  # from Open on
        self._has_asked_to_open = False
        self._about = _as_seen_by(stream.principal, server.description)

    async def run(self, incoming: AsyncIterator[ClientFrame]) -> None:
        """Take frames until the stream ends; an error ends it."""
        stream = self._stream
        try:
            async for frame in incoming:
                await stream.room()
                if stream.is_ending:  # running requests are still answered
                    return
                await self._handle(frame)
            stream.wind_down()
        except Refusal as refusal:
            stream.fail(refusal)
        except Exception as error:
            _log.error("a stream failed", exc_info=error)
            stream.fail(Refusal(Reason.INTERNAL, f"the server failed on this stream: {type(error).__name__}"))

    def end_unless_opened(self, waited_s: float) -> None:
        """End the stream if no Open has come after so long."""
        if not self._has_asked_to_open:
            self._stream.fail(Refusal(Reason.STALLED, f"no Open within {waited_s:g} s"))

    def hang_up(self) -> None:
        """Drop all replies: the client is gone."""
        self._stream.close()
        self._rate_limiter.close()

    def release(self) -> None:
        """Park the session, or drop it where it cannot be trusted."""
        stream, sessions = self._stream, self._server.sessions
        if stream.session is None:
            return
        if stream.faulty:
            sessions.forget(stream.session)
        else:
            sessions.release(stream.session, stream, self._server.clock())

    async def _handle(self, frame: ClientFrame) -> None:
        match frame:
            case Open():
                await self._open(frame)
            case Draft() | Decode():
                await self._submit(frame)
            case Cancel():
                self._stream.cancel(frame.seq)
                self._rate_limiter.recheck()
            case Ping():
                self._own_session()
                self._stream.send(Pong(frame.nonce))
            case Close():
                self._server.sessions.forget(self._own_session())
                self._stream.abandon()
                self._stream.wind_down()
            case _:
                assert_never(frame)

    async def _open(self, frame: Open) -> None:
        stream, about = self._stream, self._about
        if stream.session is not None:
            raise Violation(Reason.MALFORMED_FRAME, "a second Open on one stream")
        check_open(frame, about)
        self._has_asked_to_open = True
        if frame.sampling.rules.json_schema:
            self._check_room(frame)
        stream.sampler = await self._sampler(frame.sampling)
        if stream.is_ending:
            return
        session = self._resumed(frame)
        resumed = session is not None
        stream.session = session = session or self._new_session(frame)
        stream.watch.opened(session.id, stream.principal.payer, resumed=resumed)
        info = await self._query_prefix(session, frame.committed_len if resumed else 0)
        post, most = self._server.replies.post, self._server.max_row_bytes
        more, ended = partial(post, stream.rows_left), partial(post, stream.rows_ended)
        self._feed = FeatureFeed(session.sequence, info.length, most, more, ended)
        stream.attach(self._feed, self._server.submit)
        stream.send(
            Opened(
                session_id=session.id,
                resumed=resumed,
                kept_len=info.length,
                kept_hash=info.hash,
                max_context=about.max_context,
                max_nodes=about.max_nodes,
                eos_token_ids=about.eos_token_ids,
                server_draft=session.sequence.drafter is not None and stream.principal.may(Scope.SERVER_DRAFT),
                request_sampling=True,
                token_rules=True,
                target_digest=about.target_digest,
            )
        )

    def _check_room(self, frame: Open) -> None:
        """Raise Refusal OVER_QUOTA where there can be no session for it, before anything is done for it."""
        sessions, now = self._server.sessions, self._server.clock()
        held = sessions.find(frame.session_id, now, self._stream.principal) if frame.session_id else None
        if held is None or held.owner is None:
            sessions.check_quota(self._stream.principal, now)

    def _resumed(self, frame: Open) -> Session | None:
        """Take over the requested session; return None if it is unknown or has other features."""
        server, stream = self._server, self._stream
        session = None
        if frame.session_id:
            session = server.sessions.find(frame.session_id, server.clock(), stream.principal)
        if session is None:
            return None
        if session.owner is None:
            server.sessions.make_room_for(stream.principal, server.clock())
        session.principal = stream.principal
        # Take the session over before the older stream fails: from here on its frames can no longer reach the session.
        former = server.sessions.take(session, stream, server.clock())
        if isinstance(former, StreamWriter):
            # A session has one writer: the older stream must not send for it any more.
            former.fail(_taken_over())
        if session.tap != frame.tap or (isinstance(former, StreamWriter) and former.faulty):
            server.sessions.forget(session)
            return None
        return session

    def _new_session(self, frame: Open) -> Session:
        server, principal = self._server, self._stream.principal
        server.sessions.make_room_for(principal, server.clock())
        tap = server.taps[frame.tap] if frame.tap else None
        drafter = server.drafters.get(frame.tap) if principal.may(Scope.SERVER_DRAFT) else None
        sequence = Sequence(server.memory, tap, drafter, principal.payer, principal.holder)
        session = server.sessions.add(sequence, frame.tap, self._stream, server.clock())
        session.principal = principal
        return session

    async def _query_prefix(self, session: Session, limit: int) -> PrefixInfo:
        answer: asyncio.Future[PrefixInfo] = asyncio.get_running_loop().create_future()

        def resolve(info: PrefixInfo) -> None:
            if not answer.done():  # the stream may have ended meanwhile
                answer.set_result(info)

        replies = self._server.replies
        # The engine thread answers behind the session's earlier requests: a takeover never sees half a pass.
        self._server.submit(PrefixQuery(session.sequence, limit, lambda info: replies.post(partial(resolve, info))))
        return await answer

    async def _sampler(self, sampling: Sampling) -> Sampler:
        """Raise Refusal for rules that cannot be followed."""
        rules, vocab_size = sampling.rules, self._about.vocab_size
        if not rules:
            return Sampler(sampling)
        if (token := max((token for token, _ in rules.logit_bias), default=0)) >= vocab_size:
            raise Refusal(Reason.BAD_SAMPLING, f"logit_bias of token {token}: the vocabulary has {vocab_size}")
        queue, payer = self._server.schemas, self._stream.principal.holder
        compiler = None if queue is None else queue.compiler
        if rules.json_schema and queue is not None and queue.compiler.find(rules.json_schema, payer) is None:
            self._rate_limiter.charge(_SCHEMA_ROWS)
            await queue.compile(rules.json_schema, payer)
        return Sampler(sampling, AnswerRules(rules, compiler, payer))

    async def _submit(self, frame: Draft | Decode) -> None:
        server, stream, about = self._server, self._stream, self._about
        session = self._own_session()
        if frame.sampling is not None:
            stream.sampler = await self._sampler(frame.sampling)
            if stream.is_ending:  # another one has taken the session over meanwhile
                return
        stream.check_seq(frame.seq)
        check_tokens(frame, about)
        room = about.max_context - frame.base_len - len(frame.context) - 1
        if isinstance(frame, Decode):
            check_drafting(frame, stream.principal, is_offered=session.sequence.drafter is not None)
        assert stream.sampler is not None

        def post(answer: Reply) -> None:
            server.replies.post(partial(self._deliver, frame.seq, answer))

        def is_behind() -> bool:
            return stream.is_unread or self._rate_limiter.is_short(frame.seq)

        route = ReplyRoute(post, is_behind, self._feed, server.padded_width, about.max_context)
        request = new_request(session.sequence, frame, stream.sampler, route, time.monotonic())
        session.active_at, session.has_asked = server.clock(), True
        stream.start(frame.seq, request)
        stream.watch.asked(frame)
        self._rate_limiter.submit_or_wait(request, frame, room)

    def _deliver(self, seq: int, answer: Reply) -> None:
        self._rate_limiter.observe(seq, answer)
        session = self._stream.session
        if session is not None and session.owner is self._stream:
            session.active_at = self._server.clock()
        self._stream.deliver(seq, answer)

    def _own_session(self) -> Session:
        session = self._stream.session
        if session is None:
            raise Violation(Reason.MALFORMED_FRAME, "the first frame of a stream must be Open")
        if session.owner is not self._stream:
            raise _taken_over()
        return session


def _as_seen_by(principal: Principal, description: ServerDescription) -> ServerDescription:
    """Return the description with the principal's limits."""
    most = principal.quota.max_context
    if most is None or most >= description.max_context:
        return description
    return replace(description, max_context=most)


def _taken_over() -> Refusal:
    return Refusal(Reason.TAKEN_OVER, "another stream has taken this session over")
