"""The verifier: everything the server does, frames in and frames out, without gRPC. One instance per process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from importlib.metadata import version

from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.schema_compiler import SchemaQueue
from outrider_drafters.contracts.tap import Tap
from outrider_drafters.emulation.pace import Pace
from outrider_drafters.emulation.paced_drafter import PacedDrafter
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import ClientFrame, ServerDescription, ServerFrame
from outrider_server.config.config import LimitsConfig, SecurityConfig
from outrider_server.engine.engine import Engine
from outrider_server.engine.target import Target
from outrider_server.kv.budget import budget_bytes, fitting_context, swap_bytes
from outrider_server.kv.eviction import EvictionPolicy
from outrider_server.kv.memory import KVMemory
from outrider_server.scheduling.engine_loop import EngineLoop
from outrider_server.scheduling.reply_poster import ReplyPoster
from outrider_server.scheduling.request_queues import PrefixQuery
from outrider_server.scheduling.step_stats import StepStats
from outrider_server.security.principal import ANONYMOUS, Principal
from outrider_server.security.rate_limit import Quotas
from outrider_server.sessions.session_table import Session, SessionTable
from outrider_server.sessions.stream_reader import ServerContext, StreamReader
from outrider_server.sessions.stream_writer import StreamWriter, max_row_bytes
from outrider_server.telemetry.observer import ServerObserver, ServerStats

_SWEEP_S = 5.0  # how often expired sessions are dropped when no new one is opened
_HOLD_S = 1.0  # how long a session that waits for its link keeps its K/V rows, whoever else wants the memory
_STREAMS_A_SESSION = 4  # one is attached; others are about to take over, to be refused, or to end


class Verifier:
    """Serves sessions on one target. start() before the first session, stop() after the last.

    `drafters`: sessions with their features may ask the server to draft; of several with the same features the first
    one does. `observer` sees every stream and pass. `longest_wait_s`: longest delay of a payer that is over its rate.
    `fits_context`: shorten the target's context to what the memory for K/V holds of several sessions.
    """

    def __init__(
        self,
        target: Target,
        taps: Sequence[Tap] = (),
        limits: LimitsConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
        drafters: Sequence[Drafter] = (),
        observer: ServerObserver | None = None,
        longest_wait_s: float = SecurityConfig().longest_wait_s,
        *,
        fits_context: bool = False,
    ) -> None:
        self.observer = observer or ServerObserver()
        self._limits = limits = limits or LimitsConfig()
        self.stall_s = limits.stall_s  # seconds a client may take to read a frame
        self.pace = pace
        kv_bytes = budget_bytes(limits.kv_memory, target.kv)
        if fits_context:
            width = max((tap.info.width for tap in taps), default=0)
            target = replace(target, max_context=fitting_context(target.max_context, kv_bytes, target.kv, width))
        self._target = target
        self._sessions = SessionTable(
            limits.session_ttl_s,
            limits.max_sessions,
            limits.parked_sessions,
            self._release,
            limits.client_sessions,
        )
        self.memory = _memory(target, kv_bytes, limits)
        replies = ReplyPoster()
        self._engine_loop = EngineLoop(Engine(target, pace), limits, replies, self._stepped)
        if target.ranks is not None:
            target.ranks.broken.add_done_callback(lambda broken: self._engine_loop.faults.give_up(broken.result()))
        self._streams: dict[StreamWriter, None] = {}  # the oldest first
        self._quotas = Quotas(longest_wait_s, clock)
        self._idle = asyncio.Event()  # no stream is open
        self._idle.set()
        self._draining = False
        self._sweeper: asyncio.Task[None] | None = None
        offered = {tap.info.fingerprint: tap for tap in taps}
        self._context = ServerContext(
            description=_description(target, tuple(offered.values()), limits.max_nodes),
            taps=offered,
            drafters=_by_features(drafters, pace),
            memory=self.memory,
            sessions=self._sessions,
            submit=self._engine_loop.submit,
            replies=replies,
            clock=clock,
            max_row_bytes=max_row_bytes(limits.max_sessions),
            padded_width=pace.feature_width if pace else 0,
            schemas=None if target.schemas is None else SchemaQueue(target.schemas),
        )

    def describe(self) -> ServerDescription:
        return self._context.description

    @property
    def drafts_with(self) -> tuple[str, ...]:
        """Families of the drafters that the server can run."""
        return tuple(drafter.family for drafter in self._context.drafters.values())

    def stats(self) -> ServerStats:
        """Return current counts; from any thread."""
        parked, memory = self._sessions.num_parked, self.memory
        return ServerStats(
            active=len(self._sessions) - parked,
            parked=parked,
            kv_bytes=memory.budget.used_bytes - memory.pool.spare_bytes,
            kv_limit_bytes=memory.budget.limit_bytes,
            evictions=memory.evictions,
            swap_bytes=memory.host.used_bytes,
            restored=memory.host.restored_tokens,
            prefix_queries=memory.prefix_asked_tokens,
            prefix_hits=memory.prefix_hits_tokens,
        )

    @property
    def alive(self) -> bool:
        """True while the target can run."""
        return self._engine_loop.alive

    async def broken(self) -> str:
        """Wait until the target can no longer run, and return why."""
        return await asyncio.wrap_future(self._engine_loop.faults.broken)

    async def start(self) -> None:
        self._context.replies.attach(asyncio.get_running_loop())
        self._engine_loop.start()
        self._sweeper = asyncio.create_task(self._sweep())

    def drain(self) -> None:
        """Finish what is under way, take nothing new, end every stream with SHUTTING_DOWN. Safe to call twice."""
        self._draining = True
        for stream in self._streams:
            stream.wind_down(_shutting_down())

    def end_unless(self, admits: Callable[[Principal], bool]) -> None:
        """End the streams and sessions of principals that are no longer admitted."""
        for stream in self._streams:
            if not admits(stream.principal):
                stream.fail(Refusal(Reason.NO_KEY, "this key has been revoked, or has expired"))
        self._sessions.forget_where(lambda principal: not admits(principal))

    async def drained(self) -> None:
        """Wait until no stream is left; call drain() first."""
        await self._idle.wait()

    def abandon(self) -> None:
        """End all streams with SHUTTING_DOWN, whatever is under way."""
        self.drain()
        for stream in self._streams:
            stream.abandon()

    async def stop(self) -> None:
        """End all streams and the engine thread. Safe to call twice."""
        self.abandon()
        if self._target.schemas is not None:
            self._target.schemas.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        await asyncio.to_thread(self._engine_loop.stop)

    async def close(self) -> None:
        """Release the target, after stop(). Safe to call twice."""
        await asyncio.to_thread(self._target.close)

    async def session(
        self, incoming: AsyncIterator[ClientFrame], principal: Principal = ANONYMOUS
    ) -> AsyncGenerator[ServerFrame]:
        """Serve one client's stream. Raises Refusal when it ends with one."""
        self._admit()
        stream = StreamWriter(self.observer.stream(), principal)
        reader = StreamReader(self._context, stream, self._quotas.of(principal))
        self._streams[stream] = None
        self._idle.clear()
        reading = asyncio.create_task(reader.run(incoming))
        silence = asyncio.get_running_loop().call_later(self.stall_s, reader.end_unless_opened, self.stall_s)
        try:
            async with aclosing(stream.frames()) as frames:
                async for frame in frames:
                    yield frame
        finally:
            # The order matters: first nobody finds the stream, then replies are dropped, and only when the reader has
            # ended is the session released, for a frame being handled may still use it.
            silence.cancel()
            del self._streams[stream]
            if not self._streams:
                self._idle.set()
            reader.hang_up()
            reading.cancel()
            try:
                await asyncio.wait([reading])
            finally:  # also if this call is cancelled again while it waits
                reader.release()
                stream.watch.ended(stream.refusal)

    def _admit(self) -> None:
        """Raise Refusal when no further stream can be taken."""
        refusal = None
        if self._draining:
            refusal = _shutting_down()
        elif len(self._streams) >= _STREAMS_A_SESSION * self._limits.max_sessions and not self._end_unopened():
            refusal = Refusal(Reason.SERVER_FULL, f"{len(self._streams)} streams are open; try again later")
        if refusal is not None:
            self.observer.refused(refusal.reason)
            raise refusal

    def _end_unopened(self) -> bool:
        """End the stream that has been without Open for longest; return whether there is one."""
        for stream in self._streams:
            if stream.session is None and not stream.is_ending:
                stream.fail(Refusal(Reason.SERVER_FULL, "others wait, and this stream has not sent Open; try again"))
                return True
        return False

    def _stepped(self, stats: StepStats) -> None:
        """Take the report of a pass, in the engine thread."""
        self.memory.policy.learn(stats.rows, stats.sessions, stats.forward_s + stats.tap_s)
        self.observer.stepped(stats)

    def _release(self, session: Session) -> None:
        """Give back what a session holds, once its earlier requests have ended."""
        sequence = session.sequence
        # Through the queue: requests that are already in it still use the rows.
        self._engine_loop.submit(PrefixQuery(sequence, 0, lambda _: sequence.release()))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._sessions.expire(self._context.clock())


def _shutting_down() -> Refusal:
    return Refusal(Reason.SHUTTING_DOWN, "the server is shutting down")


def _memory(target: Target, kv_bytes: int, limits: LimitsConfig) -> KVMemory:
    return KVMemory(
        target.kv,
        kv_bytes,
        limits.shared_prefixes,
        policy=EvictionPolicy(kv_bytes, _HOLD_S, limits.room_wait_s),
        layout=limits.kv_layout,
        swap_bytes=swap_bytes(limits.kv_swap, target.kv),
    )


def _by_features(drafters: Sequence[Drafter], pace: Pace | None) -> dict[str, Drafter]:
    """Return the first drafter of each kind of features, at the pace of the emulated hardware."""
    first: dict[str, Drafter] = {}
    for drafter in drafters:
        paced = PacedDrafter(drafter, pace.server_level_ms, pace.level_factor) if pace else drafter
        first.setdefault(drafter.tap.fingerprint, paced)
    return first


def _description(target: Target, taps: Sequence[Tap], max_nodes: int) -> ServerDescription:
    return ServerDescription(
        protocol_version=PROTOCOL_VERSION,
        server_version=version("outrider"),
        target_name=target.name,
        target_fingerprint=target.fingerprint,
        tokenizer_fingerprint=target.tokenizer_fingerprint,
        vocab_size=target.vocab_size,
        max_context=target.max_context,
        max_nodes=max_nodes,
        eos_token_ids=target.eos_token_ids,
        taps=tuple(tap.info for tap in taps),
        target_digest=target.digest,
    )
