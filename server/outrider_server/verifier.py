"""The verifier: everything the server does, as frames in and frames out, without gRPC. One instance per process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from importlib.metadata import version
from typing import assert_never

import torch

from outrider_drafters.drafter import Drafter
from outrider_drafters.pace import Pace
from outrider_drafters.paced import PacedDrafter
from outrider_drafters.tap import Tap
from outrider_proto import PROTOCOL_VERSION
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
from outrider_server.checks import check_open, check_tokens
from outrider_server.choice import Chooser
from outrider_server.config import Limits, ServerConfig
from outrider_server.drafting import load_drafters
from outrider_server.engine import Engine
from outrider_server.held import Held
from outrider_server.jobs import Answer, Job
from outrider_server.model_thread import Inquiry, Kept, ModelThread
from outrider_server.sessions import Session, SessionTable
from outrider_server.stream import Stream
from outrider_server.taps import load_taps
from outrider_server.target import Target

_log = logging.getLogger(__name__)
_SWEEP_S = 5.0  # how often parked sessions are looked at when nobody opens one


class Verifier:
    """Serves sessions on one target. start() before the first session, stop() after the last.

    `drafters`: whose sessions may ask the server to draft; of several that eat the same features the first one does.
    """

    def __init__(
        self,
        target: Target,
        taps: Sequence[Tap] = (),
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
        drafters: Sequence[Drafter] = (),
    ) -> None:
        self._limits = limits or Limits()
        self.pace = pace
        self._drafters: dict[str, Drafter] = {}
        for drafter in drafters:
            self._drafters.setdefault(drafter.tap.fingerprint, _paced(drafter, pace))
        self._target = target
        self._taps: Mapping[str, Tap] = {tap.info.fingerprint: tap for tap in taps}
        self._clock = clock
        self._description = self._describe()
        self._sessions = SessionTable(self._limits.session_ttl_s, self._limits.max_sessions)
        self._thread = ModelThread(Engine(target, pace), self._limits.chunk_tokens)
        self._streams: set[Stream] = set()
        self._draining = False
        self._sweeper: asyncio.Task[None] | None = None

    def describe(self) -> ServerDescription:
        return self._description

    @property
    def drafts_with(self) -> tuple[str, ...]:
        """Families of the drafters that the server itself can run."""
        return tuple(drafter.family for drafter in self._drafters.values())

    async def start(self) -> None:
        self._thread.start()
        self._sweeper = asyncio.create_task(self._sweep())

    def drain(self) -> None:
        """Finish what is under way, take nothing new; every stream then ends with SHUTTING_DOWN. Safe twice."""
        self._draining = True
        for stream in self._streams:
            stream.wind_down(_shutting_down())

    async def stop(self) -> None:
        """End all streams and the model thread. Safe twice."""
        self.drain()
        for stream in self._streams:
            stream.abandon()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        await asyncio.to_thread(self._thread.stop)

    async def session(self, incoming: AsyncIterator[ClientFrame]) -> AsyncGenerator[ServerFrame]:
        """One client's stream. Raises Refusal when it ends by a refusal."""
        if self._draining:
            raise _shutting_down()
        stream = Stream()
        self._streams.add(stream)
        reader = asyncio.create_task(self._read(incoming, stream))
        try:
            async with aclosing(stream.frames()) as frames:
                async for frame in frames:
                    yield frame
        finally:
            self._streams.discard(stream)
            stream.abandon()
            reader.cancel()
            await asyncio.wait([reader])
            self._part(stream)

    async def _read(self, incoming: AsyncIterator[ClientFrame], stream: Stream) -> None:
        try:
            async for frame in incoming:
                await stream.room()
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
        kept = await self._ask_kept(stream.session, frame.committed_len if resumed else 0)
        about = self._description
        stream.send(
            Opened(
                session_id=stream.session.id,
                resumed=resumed,
                kept_len=kept.length,
                kept_hash=kept.hash,
                max_context=about.max_context,
                max_nodes=about.max_nodes,
                eos_token_ids=about.eos_token_ids,
                server_draft=stream.session.held.drafting is not None,
            )
        )

    def _resumed(self, frame: Open, stream: Stream) -> Session | None:
        """The session asked for, fenced against any older stream; None when unknown or of other features."""
        session = self._sessions.find(frame.session_id, self._clock()) if frame.session_id else None
        if session is None:
            return None
        former = self._sessions.take(session, stream)
        if isinstance(former, Stream):
            former.fail(Refusal(Reason.TAKEN_OVER, "another stream has taken this session over"))
        if session.tap != frame.tap:
            self._sessions.forget(session)
            return None
        return session

    def _new_session(self, frame: Open, stream: Stream) -> Session:
        self._sessions.make_room(self._clock())
        tap = self._taps[frame.tap] if frame.tap else None
        held = Held(self._target.kv, tap, self._drafters.get(frame.tap))
        return self._sessions.add(held, frame.tap, stream)

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
        check_tokens(frame, self._description)
        if isinstance(frame, Decode) and frame.tree is not None and session.held.drafting is None:
            raise Refusal(Reason.NO_SERVER_DRAFT, "this server does not draft for this session: decode without a tree")
        assert stream.chooser is not None
        loop = asyncio.get_running_loop()

        def post(answer: Answer) -> None:
            loop.call_soon_threadsafe(stream.deliver, frame.seq, answer)

        padded_width = self.pace.feature_width if self.pace else 0
        job = Job(session.held, frame, stream.chooser, post, time.monotonic(), padded_width)
        stream.start(frame.seq, job)
        self._thread.submit(job)

    def _session_of(self, stream: Stream) -> Session:
        if stream.session is None:
            raise Violation(Reason.MALFORMED_FRAME, "the first frame of a stream must be Open")
        if stream.session.owner is not stream:
            raise Refusal(Reason.TAKEN_OVER, "another stream has taken this session over")
        return stream.session

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

    def _describe(self) -> ServerDescription:
        target = self._target
        return ServerDescription(
            protocol_version=PROTOCOL_VERSION,
            server_version=version("outrider"),
            target_name=target.name,
            target_fingerprint=target.fingerprint,
            tokenizer_fingerprint=target.tokenizer_fingerprint,
            vocab_size=target.vocab_size,
            max_context=target.max_context,
            max_nodes=self._limits.max_nodes,
            eos_token_ids=target.eos_token_ids,
            taps=tuple(tap.info for tap in self._taps.values()),
        )


def build_verifier(config: ServerConfig) -> Verifier:
    """Load target, taps and drafters. Raises UsageError."""
    pace = None if config.pace is None else Pace.load(config.pace)
    target = Target.load(config.target, config.dtype, config.device, config.max_context)
    if (threads := config.threads or (1 if target.is_small else None)) is not None:
        torch.set_num_threads(threads)
    taps = load_taps(target, config.target, config.drafters)
    drafters = load_drafters(target, config.target, config.drafters) if config.server_draft else []
    return Verifier(target, taps, config.limits, pace=pace, drafters=drafters)


def _paced(drafter: Drafter, pace: Pace | None) -> Drafter:
    return drafter if pace is None else PacedDrafter(drafter, pace.server_level_ms, pace.level_factor)


def _shutting_down() -> Refusal:
    return Refusal(Reason.SHUTTING_DOWN, "the server is shutting down")
