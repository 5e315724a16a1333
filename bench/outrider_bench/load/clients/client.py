"""One client under load: it asks, thinks, opens new sessions, and checks every token it gets."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from outrider_bench.core.tapped_transport import TappedConnection, TappedTransport
from outrider_bench.load.clients.counters import ClientCounters
from outrider_bench.load.clients.drafting import ReplayDrafting
from outrider_bench.load.clients.settings import ClientBehavior
from outrider_bench.load.clients.texts import LoadText
from outrider_client.async_client import AsyncClient
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.link_state import LinkState
from outrider_client.connection.transport import Connection
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Committed, Cycle, Finished, LinkChanged, RolledBack, Unverified, Verified
from outrider_client.models.local_models import LocalModels
from outrider_proto.errors import LinkError, Refusal
from outrider_proto.frames import ClientFrame, Decode, Draft, Finish, ServerFrame, Verdict

_AGAIN_S = 0.5  # after an error


@dataclass(slots=True)
class _PendingVerdict:
    at: float
    on_prompt: bool
    streams: bool  # a Decode: verdicts come until it has finished


class ObservedConnection(TappedConnection):
    """Calls `on_verdict` with every verdict, the seconds since its request, and whether that was a prompt's.

    `on_stray` is called for a verdict that belongs to no pending request.
    """

    def __init__(
        self, inner: Connection, on_verdict: Callable[[Verdict, float, bool], None], on_stray: Callable[[], None]
    ) -> None:
        super().__init__(inner)
        self._on_verdict, self._on_stray = on_verdict, on_stray
        self._pending: dict[int, _PendingVerdict] = {}
        self.is_closed = False

    @property
    def num_pending(self) -> int:
        """Number of requests whose last verdict has not come."""
        return len(self._pending)

    def send(self, frame: ClientFrame) -> None:
        match frame:
            case Draft(seq=seq, tree=tree):
                self._pending[seq] = _PendingVerdict(time.monotonic(), not len(tree), streams=False)
            case Decode(seq=seq):
                self._pending[seq] = _PendingVerdict(time.monotonic(), on_prompt=True, streams=True)
            case _:
                pass
        # Registered before it is sent: no verdict can come unexpected, and its time includes the sending.
        self._inner.send(frame)

    async def receive(self) -> ServerFrame:
        frame = await self._inner.receive()
        if isinstance(frame, Verdict):
            self._take(frame)
        return frame

    async def close(self) -> None:
        self.is_closed = True
        await self._inner.close()

    def _take(self, verdict: Verdict) -> None:
        now, pending = time.monotonic(), self._pending.get(verdict.seq)
        if pending is None:
            self._on_stray()
            return
        self._on_verdict(verdict, now - pending.at, pending.on_prompt)
        # A stream's next verdict is timed from this one, and only its first reads the prompt.
        pending.at, pending.on_prompt = now, False
        if not pending.streams or verdict.finish is not Finish.NOT_YET:
            del self._pending[verdict.seq]


@dataclass(slots=True)
class CountingWindow:
    """The time in which to count, in seconds of time.monotonic()."""

    begin: float = 0.0
    end: float = float("inf")

    def holds(self, now: float) -> bool:
        return self.begin <= now < self.end


class LoadClient:
    """One client; `drafting` makes the drafting of a session, None uses the models' own drafter."""

    def __init__(
        self,
        counters: ClientCounters,
        window: CountingWindow,
        habits: ClientBehavior,
        config: ClientConfig,
        models: LocalModels,
        texts: Sequence[LoadText],
        generator: random.Random,
        drafting: Callable[[], ReplayDrafting] | None,
    ) -> None:
        self.counters = counters
        self._window = window
        self._habits = habits
        self._config = config
        self._models = models
        self._texts = texts
        self._generator = generator
        self._make_drafting = drafting
        self._drafting: ReplayDrafting | None = None
        self._transport = TappedTransport(
            GrpcTransport(config.server, config.access),
            lambda inner: ObservedConnection(inner, self._on_verdict, self._on_stray),
        )
        self._client: AsyncClient | None = None

    async def run(self) -> None:
        """Ask until all is asked or until cancelled.

        An answer that is cancelled is checked as far as it came.
        """
        try:
            async with aclosing(self._request_times()) as moments:
                async for asked_at in moments:
                    await self._answer_with_retries(self._generator.choice(self._texts), asked_at)
                    if self._habits.stay is not None and self._generator.random() < 1 / self._habits.stay:
                        await self._leave()
        finally:
            await self._leave()

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def _on_verdict(self, verdict: Verdict, seconds: float, on_prompt: bool) -> None:
        if not self._window.holds(time.monotonic()):
            return
        self.counters.verdicts += 1
        (self.counters.first_verdict_s if on_prompt else self.counters.verdict_s).add(seconds)
        self.counters.queue_s.add(verdict.queue_us / 1e6)
        self.counters.verify_s.add(verdict.verify_us / 1e6)

    def _on_stray(self) -> None:
        self.counters.strays += 1

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _request_times(self) -> AsyncGenerator[float]:
        """Yield the times at which requests are due."""
        habits, due = self._habits, time.monotonic()
        left = habits.requests
        if habits.think_s and habits.rate is None:  # clients do not start in step
            due += self._generator.uniform(0, habits.think_s)
        while left is None or left > 0:
            if habits.rate is not None:
                # Counted from when it was due, not from now: an open loop must not slow down with the server.
                due += self._generator.expovariate(habits.rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield due
            if habits.rate is None:
                due = time.monotonic() + (self._generator.expovariate(1 / habits.think_s) if habits.think_s else 0.0)
            left = None if left is None else left - 1

    async def _answer_with_retries(self, text: LoadText, asked_at: float) -> None:
        """Ask until there is an answer."""
        while True:
            try:
                await self._ask(text, asked_at)
                return
            except (Refusal, LinkError) as error:
                self.counters.errors[error.reason.name if isinstance(error, Refusal) else "LINK"] += 1
                await self._leave()
                await asyncio.sleep(_AGAIN_S)

    async def _ask(self, text: LoadText, asked_at: float) -> None:
        client, check = self._session_client(text), _AnswerCheck(self.counters, self._window)
        try:
            async with aclosing(client.generate(text.prompt)) as events:
                async for event in events:
                    check.take(event, asked_at)
        finally:
            # In `finally`, so that an answer that is cancelled is checked as well.
            expected = text.answer[: self._config.max_new_tokens]
            self.counters.checked += 1
            if not check.matches(expected):
                self.counters.differs(text.name, check.verified, expected, check.history)
        if self._config.mode == "stop-and-wait":
            newest = self._transport.newest
            # Nothing is owed by a connection that is gone: its drafts are asked for again on the next one.
            self.counters.lost += 0 if newest is None or newest.is_closed else newest.num_pending
        if self._window.holds(time.monotonic()):
            self.counters.answers += 1

    def _session_client(self, text: LoadText) -> AsyncClient:
        """Return this session's client, ready for `text`."""
        if self._client is None:
            self._drafting = None if self._make_drafting is None else self._make_drafting()
            self._client = AsyncClient(
                self._config, models=self._models, transport=self._transport, drafting=self._drafting
            )
            self.counters.sessions += 1
        if self._drafting is not None:
            self._drafting.text = text
        return self._client

    async def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


class _AnswerCheck:
    """Counts and checks one answer as it arrives."""

    def __init__(self, counters: ClientCounters, window: CountingWindow) -> None:
        self._counters = counters
        self._window = window
        self._tokens: list[int] = []
        self._num_unverified = 0
        self._reason = ""
        self.history = ""  # what happened at which length

    @property
    def verified(self) -> tuple[int, ...]:
        return tuple(self._tokens[: len(self._tokens) - self._num_unverified])

    def matches(self, expected: tuple[int, ...]) -> bool:
        """Return True for the expected answer, or its beginning where it was interrupted."""
        verified = self.verified
        if self._reason in ("", "unverified", "link"):
            return verified == expected[: len(verified)]
        return verified == expected

    def take(self, event: object, asked_at: float) -> None:
        now = time.monotonic()
        match event:
            case Committed(tokens=tokens):
                self._count(len(tokens), now)
                self._tokens += tokens
            case Verified(count=count):
                self._count(count, now)
                self._num_unverified -= count
                self._note(f"{count} verified")
            case Unverified(tokens=tokens):
                self._tokens += tokens
                self._num_unverified += len(tokens)
                self._counters.unverified += len(tokens)
            case RolledBack(count=count):
                del self._tokens[len(self._tokens) - count :]
                self._num_unverified -= count
                self._counters.rolled_back += count
                self._note(f"{count} rolled back")
            case Cycle(request=Draft(tree=tree), verdict=verdict) if len(tree) and not self._num_unverified:
                self._judge(len(tree), verdict, now)
            case LinkChanged(state=state, detail=detail):
                self._counters.outages += state is LinkState.OFFLINE
                self._note(f"{state.name.lower()} {detail}".strip())
            case Finished():
                self._finish(event, asked_at, now)
            case _:
                pass

    def _note(self, what: str) -> None:
        self.history += f"{len(self._tokens)}: {what}, "

    def _count(self, num_tokens: int, now: float) -> None:
        if self._window.holds(now):
            self._counters.tokens += num_tokens

    def _judge(self, num_nodes: int, verdict: Verdict, now: float) -> None:
        if self._window.holds(now):
            self._counters.drafts += 1
            self._counters.nodes += num_nodes
            self._counters.accepted += len(verdict.path)

    def _finish(self, event: Finished, asked_at: float, now: float) -> None:
        self._reason = event.reason
        if self._reason in ("unverified", "link"):
            self._counters.errors["ended without a link"] += 1
        if self._window.holds(now):
            self._counters.request_s.add(now - asked_at)
            self._counters.first_token_s.add(event.statistics.time_to_first_token_ms / 1e3)
