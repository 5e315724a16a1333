"""The verifier: everything the server does, as frames in and frames out, without gRPC. One instance per process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import assert_never

from outrider_drafters.drafter import Drafter
from outrider_drafters.pace import Pace
from outrider_drafters.paced import PacedDrafter
from outrider_drafters.tap import Tap
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
    ServerDescription,
    ServerFrame,
)
from outrider_server.checks import check_drafting, check_open, check_tokens
from outrider_server.choice import Chooser
from outrider_server.config import Limits
from outrider_server.description import description
from outrider_server.engine import Engine
from outrider_server.held import Held
from outrider_server.jobs import Answer, Job
from outrider_server.kv.available import budget_bytes
from outrider_server.kv.memory import Memory
from outrider_server.mailbox import Mailbox
from outrider_server.model_thread import Inquiry, Kept, ModelThread
from outrider_server.security.allowances import Allowances
from outrider_server.security.config import Security
from outrider_server.security.principal import ANYBODY, Principal, Scope
from outrider_server.security.toll import Toll
from outrider_server.sessions import Session, SessionTable
from outrider_server.stream import ROOM_BYTES, Stream
from outrider_server.target import Target
from outrider_server.telemetry.census import Census
from outrider_server.telemetry.observer import Observer

_log = logging.getLogger(__name__)
_SWEEP_S = 5.0  # how often parked sessions are looked at when nobody opens one
_STREAMS_A_SESSION = 4  # one speaks for it; others are about to take it over, to be refused, or to end


class Verifier:
    """Serves sessions on one target. start() before the first session, stop() after the last.

    `drafters`: whose sessions may ask the server to draft; of several that eat the same features the first one does.
    `observer` is told of every stream and pass. `longest_wait_s`: what a payer over its rate is made to wait at most.
    """

    def __init__(
        self,
        target: Target,
        taps: Sequence[Tap] = (),
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
        drafters: Sequence[Drafter] = (),
        observer: Observer | None = None,
        longest_wait_s: float = Security().longest_wait_s,
    ) -> None:
        self.observer = observer or Observer()
        self._limits = limits or Limits()
        self.pace = pace
        self._drafters: dict[str, Drafter] = {}
        for drafter in drafters:
            self._drafters.setdefault(drafter.tap.fingerprint, _paced(drafter, pace))
        self._target = target
        self._taps: Mapping[str, Tap] = {tap.info.fingerprint: tap for tap in taps}
        self._clock = clock
        self._description = description(target, self._taps.values(), self._limits.max_nodes)
        self._sessions = SessionTable(self._limits.session_ttl_s, self._limits.max_sessions, self._forgotten)
        self.memory = Memory(target.kv, budget_bytes(self._limits.kv_memory, target.kv), self._limits.shared_prefixes)
        self._thread = ModelThread(Engine(target, pace), self._limits, self.observer.ticked)
        self._streams: set[Stream] = set()
        self._tolls: dict[Stream, Toll] = {}
        self._allowances = Allowances(longest_wait_s, clock)
        self._idle = asyncio.Event()  # no stream is open
        self._idle.set()
        self._draining = False
        self._mailbox: Mailbox | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def describe(self) -> ServerDescription:
        return self._description

    @property
    def stall_s(self) -> float:
        """How long a client may take to read a frame."""
        return self._limits.stall_s

    @property
    def drafts_with(self) -> tuple[str, ...]:
        """Families of the drafters that the server itself can run."""
        return tuple(drafter.family for drafter in self._drafters.values())

    def census(self) -> Census:
        """What is held now; from any thread."""
        parked, memory = self._sessions.num_parked, self.memory
        return Census(
            active=len(self._sessions) - parked,
            parked=parked,
            kv_bytes=memory.used_bytes - memory.spare_bytes,
            kv_limit_bytes=memory.budget_bytes,
            evictions=memory.evictions,
            prefix_queries=memory.prefix_asked_tokens,
            prefix_hits=memory.prefix_hits_tokens,
        )

    @property
    def alive(self) -> bool:
        """Whether the model still runs."""
        ranks = self._target.ranks
        return self._thread.alive and (ranks is None or not ranks.broken.done())

    async def broken(self) -> str:
        """Wait until the target cannot run any more, which befalls only one that is divided among processes: why."""
        ranks = self._target.ranks
        return await (
            asyncio.get_running_loop().create_future() if ranks is None else asyncio.wrap_future(ranks.broken)
        )

    async def start(self) -> None:
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._thread.start()
        self._sweeper = asyncio.create_task(self._sweep())

    def drain(self) -> None:
        """Finish what is under way, take nothing new; every stream then ends with SHUTTING_DOWN. Safe twice."""
        self._draining = True
        for stream in self._streams:
            stream.wind_down(_shutting_down())

    def end_unless(self, admits: Callable[[Principal], bool]) -> None:
        """End the streams of those who are not admitted any more, and forget their sessions."""
        for stream in self._streams:
            if not admits(stream.principal):
                stream.fail(Refusal(Reason.NO_KEY, "this key has been revoked, or has expired"))
        self._sessions.forget_those(lambda principal: not admits(principal))

    async def drained(self) -> None:
        """Wait until no stream is left; drain() first, or they go on coming."""
        await self._idle.wait()

    def abandon(self) -> None:
        """End all streams with SHUTTING_DOWN, whatever is under way."""
        self.drain()
        for stream in self._streams:
            stream.abandon()

    async def stop(self) -> None:
        """End all streams and the model thread. Safe twice."""
        self.abandon()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        await asyncio.to_thread(self._thread.stop)

    async def close(self) -> None:
        """Let go of the target, after stop(). Safe twice."""
        await asyncio.to_thread(self._target.close)

    async def session(
        self, incoming: AsyncIterator[ClientFrame], principal: Principal = ANYBODY
    ) -> AsyncGenerator[ServerFrame]:
        """One client's stream. Raises Refusal when it ends by a refusal."""
        self._admit()
        stream = Stream(self.observer.stream(), principal)
        self._tolls[stream] = Toll(self._allowances.of(principal), self._thread.submit)
        self._streams.add(stream)
        self._idle.clear()
        reader = asyncio.create_task(self._read(incoming, stream))
        silence = asyncio.get_running_loop().call_later(self.stall_s, self._part_with_silent, stream)
        try:
            async with aclosing(stream.frames()) as frames:
                async for frame in frames:
                    yield frame
        finally:
            silence.cancel()
            self._leave(stream)
            stream.abandon()
            self._tolls.pop(stream).close()
            reader.cancel()
            try:
                await asyncio.wait([reader])
            finally:  # also where this call is cancelled once more
                self._part(stream)
                stream.watch.ended(stream.refusal)

    def _leave(self, stream: Stream) -> None:
        self._streams.discard(stream)
        if not self._streams:
            self._idle.set()

    def _admit(self) -> None:
        """Raises Refusal when no further stream can be taken."""
        refusal = None
        if self._draining:
            refusal = _shutting_down()
        elif len(self._streams) >= _STREAMS_A_SESSION * self._limits.max_sessions:
            refusal = Refusal(Reason.SERVER_FULL, f"{len(self._streams)} streams are open; try again later")
        if refusal is not None:
            self.observer.refused(refusal.reason)
            raise refusal

    async def _read(self, incoming: AsyncIterator[ClientFrame], stream: Stream) -> None:
        try:
            async for frame in incoming:
                await stream.room()
                if stream.is_ending:
                    return
                await self._handle(frame, stream)
            stream.wind_down()
        except Refusal as refusal:
            stream.fail(refusal)
        except Exception as error:
            _log.error("a stream failed", exc_info=error)
            stream.fail(Refusal(Reason.INTERNAL, f"the server failed on this stream: {type(error).__name__}"))

    async def _handle(self, frame: ClientFrame, stream: Stream) -> None:
        match frame:
            case _ if self._draining:
                pass  # the stream is about to end; what is under way is still answered
            case Open():
                await self._open(frame, stream)
            case Draft() | Decode():
                self._submit(frame, stream)
            case Cancel():
                stream.cancel(frame.seq)
                self._tolls[stream].hurry()
            case Ping():
                self._session_of(stream)
                stream.send(Pong(frame.nonce))
            case Close():
                self._sessions.forget(self._session_of(stream))
                stream.abandon()
                stream.wind_down()
            case _:
                assert_never(frame)

    async def _open(self, frame: Open, stream: Stream) -> None:
        if stream.session is not None:
            raise Violation(Reason.MALFORMED_FRAME, "a second Open on one stream")
        check_open(frame, self._description)
        stream.chooser = Chooser(frame.sampling)
        session = self._resumed(frame, stream)
        resumed = session is not None
        stream.session = session or self._new_session(frame, stream)
        stream.watch.opened(stream.session.id, stream.principal.payer, resumed=resumed)
        stream.max_waiting_bytes = ROOM_BYTES + 2 * self._row_bytes(stream.session)
        kept = await self._ask_kept(stream.session, frame.committed_len if resumed else 0)
        about = self._about(stream)
        stream.send(
            Opened(
                session_id=stream.session.id,
                resumed=resumed,
                kept_len=kept.length,
                kept_hash=kept.hash,
                max_context=about.max_context,
                max_nodes=about.max_nodes,
                eos_token_ids=about.eos_token_ids,
                server_draft=stream.session.held.drafting is not None and stream.principal.may(Scope.SERVER_DRAFT),
            )
        )

    def _resumed(self, frame: Open, stream: Stream) -> Session | None:
        """The session asked for, fenced against any older stream; None when unknown or of other features."""
        session = None
        if frame.session_id:
            session = self._sessions.find(frame.session_id, self._clock(), stream.principal)
        if session is None:
            return None
        session.principal = stream.principal
        former = self._sessions.take(session, stream)
        if isinstance(former, Stream):
            former.fail(Refusal(Reason.TAKEN_OVER, "another stream has taken this session over"))
        if session.tap != frame.tap or (isinstance(former, Stream) and former.faulty):
            self._sessions.forget(session)
            return None
        return session

    def _new_session(self, frame: Open, stream: Stream) -> Session:
        principal = stream.principal
        self._sessions.make_room_for(principal, self._clock())
        self._sessions.make_room(self._clock())
        tap = self._taps[frame.tap] if frame.tap else None
        drafter = self._drafters.get(frame.tap) if principal.may(Scope.SERVER_DRAFT) else None
        held = Held(self.memory, tap, drafter, principal.payer)
        session = self._sessions.add(held, frame.tap, stream)
        session.principal = principal
        return session

    async def _ask_kept(self, session: Session, limit: int) -> Kept:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Kept] = loop.create_future()

        def settle(kept: Kept) -> None:
            if not answer.done():  # the stream may have ended while it waited
                answer.set_result(kept)

        def post(kept: Kept) -> None:
            loop.call_soon_threadsafe(settle, kept)

        self._thread.submit(Inquiry(session.held, limit, post))
        return await answer

    def _submit(self, frame: Draft | Decode, stream: Stream) -> None:
        session = self._session_of(stream)
        stream.check_seq(frame.seq)
        about = self._about(stream)
        check_tokens(frame, about)
        room = about.max_context - frame.base_len - len(frame.context) - 1
        if isinstance(frame, Decode):
            check_drafting(frame, stream.principal, is_offered=session.held.drafting is not None)
            if about is not self._description:  # else the engine itself stops at the target's context
                frame = replace(frame, max_tokens=min(frame.max_tokens, room))
        assert stream.chooser is not None
        mailbox = self._mailbox
        assert mailbox is not None  # it is there from start() on

        def post(answer: Answer) -> None:
            mailbox.put(partial(self._deliver, stream, frame.seq, answer))

        padded_width = self.pace.feature_width if self.pace else 0
        job = Job(session.held, frame, stream.chooser, post, time.monotonic(), padded_width)
        stream.start(frame.seq, job)
        stream.watch.asked(frame)
        self._tolls[stream].pass_through(job, frame, room)

    def _deliver(self, stream: Stream, seq: int, answer: Answer) -> None:
        if (toll := self._tolls.get(stream)) is not None:
            toll.saw(seq, answer)
        stream.deliver(seq, answer)

    def _about(self, stream: Stream) -> ServerDescription:
        """What this server is to the stream's principal."""
        most = stream.principal.quota.max_context
        if most is None or most >= self._description.max_context:
            return self._description
        return replace(self._description, max_context=most)

    def _session_of(self, stream: Stream) -> Session:
        if stream.session is None:
            raise Violation(Reason.MALFORMED_FRAME, "the first frame of a stream must be Open")
        if stream.session.owner is not stream:
            raise Refusal(Reason.TAKEN_OVER, "another stream has taken this session over")
        return stream.session

    def _row_bytes(self, session: Session) -> int:
        """Of the features of as many tokens as there may be: a client may ask for them and go on before they came."""
        width = session.held.tap.info.width if session.held.tap else 0
        return 4 * width * self._target.max_context

    def _part_with_silent(self, stream: Stream) -> None:
        if stream.session is None:
            stream.fail(Refusal(Reason.STALLED, f"no Open within {self.stall_s:g} s"))

    def _forgotten(self, session: Session) -> None:
        """What it holds goes back when the jobs before this have ended."""
        held = session.held
        self._thread.submit(Inquiry(held, 0, lambda _: held.release()))

    def _part(self, stream: Stream) -> None:
        if stream.session is None:
            return
        if stream.faulty:
            self._sessions.forget(stream.session)
        else:
            self._sessions.release(stream.session, stream, self._clock())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._sessions.expire(self._clock())


def _paced(drafter: Drafter, pace: Pace | None) -> Drafter:
    return drafter if pace is None else PacedDrafter(drafter, pace.server_level_ms, pace.level_factor)


def _shutting_down() -> Refusal:
    return Refusal(Reason.SHUTTING_DOWN, "the server is shutting down")
