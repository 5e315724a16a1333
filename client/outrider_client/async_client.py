"""The asynchronous client: any number of answers from one server, each in a session of its own while it is written."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from outrider_client.connection.diagnosis import explaining
from outrider_client.connection.grpc_transport import GrpcTransport
from outrider_client.connection.link_state import LinkState
from outrider_client.connection.policy import ConnectionPolicy
from outrider_client.connection.session import ClientSession
from outrider_client.connection.transport import Transport
from outrider_client.controller.measurements import OnlineMode
from outrider_client.controller.mode_controller import ModeController
from outrider_client.core.answer_text import AnswerText
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Event, Finished, Warned
from outrider_client.core.prompt import PlainPrompt, Segment, dropped_warning, is_private
from outrider_client.core.statistics import Statistics
from outrider_client.drafting.drafting_thread import AsyncDrafter, DraftingThread
from outrider_client.drafting.local_drafter import AcceptanceCheck
from outrider_client.generation.context import GenerationContext
from outrider_client.generation.generation import Generation
from outrider_client.generation.runner import write_answer
from outrider_client.models.local_models import LocalModels, Prompt
from outrider_client.privacy.placeholders import Placeholders
from outrider_client.privacy.private_generation import generate_privately
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.transcript import FinishReason, Origin, Transcript
from outrider_drafters.emulation.pace import Pace
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_proto.errors import LinkError, UsageError
from outrider_proto.frames import ServerDescription
from outrider_proto.packing import common_prefix_len

CLOSED = "this client is closed: make a new one"
SESSIONS = 16  # answers that a client writes at once, where nobody says how many
FALLBACK_MIN_MATCH = 2  # tokens; after a single repeated token almost anything may follow


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer with its statistics.

    `origins[i]` says where token i comes from, and `logprobs[i]` how likely the target finds it: None where the target
    was not asked, because ClientConfig.logprobs is unset or there was no link.
    """

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    reason: FinishReason
    statistics: Statistics
    logprobs: tuple[TokenLogprobs | None, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the answer as content of the next prompt, private if it was written on private text."""
        return (Segment(self.text, private=self.reason == "private"),)


class AsyncClient:
    """Drafts on this device and has a server verify its drafts. Use as `async with AsyncClient("HOST:PORT") as client`.

    Answers may be written side by side, from as many tasks as you like: at most `sessions` at once, the others wait for
    their turn. `models` and `transport` are made from the configuration unless given; given ones may be shared between
    clients. `drafting` replaces the thread that runs the models' drafter, and has but one session. `clock` returns
    seconds.
    """

    def __init__(
        self,
        config: ClientConfig | str | None = None,
        *,
        models: LocalModels | None = None,
        transport: Transport | None = None,
        drafting: AsyncDrafter | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sessions: int = SESSIONS,
    ) -> None:
        self.config = as_config(config)
        if sessions < 1:
            raise UsageError(f"sessions={sessions}: need at least 1")
        self._models = models
        self._loading = threading.Lock()
        self._given_transport = transport
        self._transport = self._new_transport()
        self._given_drafting = drafting
        self._clock = clock
        self._contexts: list[GenerationContext] = []
        self._free: list[GenerationContext] = []  # the one that rested longest first
        self._context: GenerationContext | None = None  # of the newest answer
        self._placeholders = Placeholders()
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that this client was last used in
        self._sessions = sessions if drafting is None else 1
        self._turns = asyncio.Semaphore(self._sessions)
        self._answers: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def link_state(self) -> LinkState:
        if self._is_closed:
            return LinkState.CLOSED
        return LinkState.CONNECTING if self._context is None else self._context.session.state

    def begin_conversation(self) -> None:
        """Forget the private values of the conversation so far, so that no placeholder restores them later."""
        self._placeholders = Placeholders()

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens of the newest answer's session so far; empty before the first answer."""
        return () if self._context is None else self._context.transcript.tokens

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received over all answers."""
        ups, downs = zip((0, 0), *(context.session.num_bytes for context in self._contexts), strict=True)
        return sum(ups), sum(downs)

    @property
    def rtt_s(self) -> float | None:
        """Mean round trip in seconds; None before the first measurement."""
        return None if self._context is None else self._context.session.rtt.mean_s

    @property
    def active_mode(self) -> OnlineMode | None:
        """The mode last used with a link; under `auto` the one it chose."""
        return None if self._context is None else self._context.controller.active_mode

    async def describe(self) -> ServerDescription:
        """Ask the server what it hosts. Raises LinkError or Refusal."""
        timeout_s = self.config.timeouts.describe_s
        with explaining(self._server):
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._transport.describe()
            except TimeoutError as error:
                raise LinkError(f"{self._transport.address}: no answer within {timeout_s:g} s") from error

    async def generate(self, prompt: Prompt, **overrides: Any) -> AsyncGenerator[Event, None]:  # Any: see for_answer
        """Yield the answer as events, the last of which is Finished.

        Leave the loop or close the generator to stop early: that cancels the request and keeps the session. Only the
        part of the prompt that differs from the session's tokens is sent; of private segments, only what
        `config.privacy` allows. `overrides` change fields of the configuration for this answer.

        Raises UsageError, Refusal, or LinkError when no server can be reached at the start.
        """
        config = self.config.for_answer(**overrides)
        await self._await_ends()
        if self._is_closed:
            raise UsageError(CLOSED)
        # A queue between writing and reading: a slow reader must not delay verdicts, drafts or heartbeats.
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        writing = asyncio.create_task(self._write(prompt, config, events.put_nowait), name="outrider answer")
        self._answers.add(writing)
        writing.add_done_callback(self._answers.discard)
        writing.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            if writing.cancelled():  # by close(); awaited, it would look as if the caller were cancelled
                raise UsageError(CLOSED)
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def complete(self, prompt: Prompt, **overrides: Any) -> Completion:  # Any: see for_answer
        """Return the whole answer. Takes and raises what `generate` does."""
        written, finished = AnswerText(), None
        async with contextlib.aclosing(self.generate(prompt, **overrides)) as events:
            async for event in events:
                written.take(event)
                finished = event if isinstance(event, Finished) else finished
        assert finished is not None
        return Completion(
            written.text, written.token_ids, written.origins, finished.reason, finished.statistics, written.logprobs
        )

    async def close(self) -> None:
        """End the answers that are being written, close the sessions and stop the drafters. Safe to call twice."""
        self._enter_loop()
        self._is_closed = True
        answers = tuple(self._answers)
        for writing in answers:
            writing.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        contexts, self._contexts, self._free, self._context = self._contexts, [], [], None
        await asyncio.gather(*(_close(context) for context in contexts))
        await self._transport.close()

    @property
    def _server(self) -> str:
        return self.config.served_as or self.config.server

    def _enter_loop(self) -> None:
        """Move to the running event loop if the former one has ended. Raises UsageError while it has not."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise UsageError("AsyncClient runs on asyncio's event loop: elsewhere use Client, in a thread") from error
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise UsageError("this client is in use in another event loop: use one client for each")
        for context in self._contexts:
            context.session.leave_loop()
        self._loop, self._free, self._answers = loop, list(self._contexts), set()
        self._turns = asyncio.Semaphore(self._sessions)

    async def _await_ends(self) -> None:
        """Wait for the ends of answers that nobody reads any more, so that their sessions are free."""
        self._enter_loop()
        # After `break` the event loop closes the generator by itself: one turn to make a task of that, one to begin it.
        for _ in range(2):
            await asyncio.sleep(0)
        if ending := [writing for writing in self._answers if writing.cancelling()]:
            await asyncio.wait(ending)

    @contextlib.asynccontextmanager
    async def _lent(self, models: LocalModels, prompt: Sequence[int]) -> AsyncIterator[GenerationContext]:
        """Lend the free session that has most of the prompt already, or a new one."""
        async with self._turns:
            context = max(self._free, key=lambda one: common_prefix_len(one.transcript.tokens, prompt), default=None)
            if context is None:
                context = self._new_context(models)
                self._contexts.append(context)
            else:
                self._free.remove(context)
            self._context = context
            try:
                yield context
            finally:
                context.session.watcher = lambda state, detail: None
                self._free.append(context)

    async def _write(self, prompt: Prompt, config: ClientConfig, emit: Callable[[Event], None]) -> None:
        with explaining(self._server):
            models = await asyncio.to_thread(self._loaded)
            if config.privacy == "local" and is_private(prompt):
                await models.compile_schema(config.sampling.rules)
                async with self._lent(models, ()) as context:
                    await generate_privately(context, prompt, config, emit)
            else:
                await self._generate(models, prompt, config, emit)

    async def _generate(
        self, models: LocalModels, prompt: Prompt, config: ClientConfig, emit: Callable[[Event], None]
    ) -> None:
        shown: Prompt | PlainPrompt = prompt
        values: Mapping[str, str] = {}
        if config.privacy == "placeholder":  # in a thread, as below
            schema = config.sampling.rules.json_schema
            hidden = await asyncio.to_thread(self._placeholders.hidden, prompt, schema)
            shown, values = hidden.prompt, hidden.values
            if hidden.json_schema != schema:
                config = config.for_answer(json_schema=hidden.json_schema)
        await models.compile_schema(config.sampling.rules)
        # A prompt that is refused here was not sent, so the session stays as it is. In a thread: a long prompt takes
        # seconds to tokenize, and heartbeats and all other answers of this loop would wait.
        encoded = await asyncio.to_thread(
            models.encode_newest,
            shown,
            raw=config.raw_form,
            reserve=config.max_new_tokens,
            on_full=config.on_full_context,
        )
        if encoded.num_dropped:
            emit(Warned(dropped_warning(encoded.num_dropped)))
        # Private conversations neither read nor fill the history: not even what was said of their placeholders.
        history = None if is_private(prompt) or values else models.history
        texts = None if history is None else await asyncio.to_thread(history.texts)
        last: list[Event] = []  # held until the answer is kept: what goes wrong with that is told before

        def put(event: Event) -> None:
            (last.append if history is not None and isinstance(event, Finished) else emit)(event)

        def warn() -> None:
            for warning in () if history is None else history.take_warnings():
                emit(Warned(warning))

        warn()
        async with self._lent(models, encoded.tokens) as context:
            if isinstance(context.drafting, DraftingThread):
                context.drafting.history = texts
            await write_answer(Generation(context, config, put, values), encoded.tokens)
            if history is not None:
                await asyncio.to_thread(history.add, context.transcript.verified_tokens)
        warn()
        for event in last:
            emit(event)
        if history is not None:  # the next answer need not wait for this then
            await asyncio.to_thread(history.texts)

    def _loaded(self) -> LocalModels:
        """Load the models if they are not yet: not for the event loop."""
        with self._loading:  # answers that begin together share them
            if self._models is None:
                self._models = LocalModels.load(self.config)
            self._models.prepare()
        return self._models

    def _new_transport(self) -> Transport:
        # One for each session: a load balancer tells them apart by it.
        given = self._given_transport
        return given if given is not None else GrpcTransport(self.config.server, self.config.access)

    def _new_context(self, models: LocalModels) -> GenerationContext:
        transcript = Transcript()
        # Without the sampling, which each answer sets: a private one has nothing of it sent.
        open_frame = models.open_frame(self.config.codec)
        policy = ConnectionPolicy(self.config.timeouts, self.config.patience, self.config.backoff)
        session = ClientSession(self._new_transport(), open_frame, transcript, policy, self._clock, random.Random())
        drafting = self._given_drafting
        if drafting is None and models.drafter is not None:
            drafting = DraftingThread(models.drafter, models.drafter_threads)
        other = models.offline_drafter
        writing = None if other is None else DraftingThread(other, models.drafter_threads)
        fallback_drafter = DraftingThread(LookupDrafter(models.vocab_size, shortest=FALLBACK_MIN_MATCH))
        pace = None if self.config.pace is None else Pace.load(self.config.pace)
        controller = ModeController(drafting, pace, self._clock)
        hints = {}
        if models.drafter is not None:
            heads = RoutedDrafter.of(models.drafter)
            hints = {name: getattr(head, "hint", "") for name, head in zip(heads.names, heads.heads, strict=True)}
        acceptance_check = AcceptanceCheck(models.vocab_size, hints)
        return GenerationContext(
            models, session, transcript, drafting, writing, fallback_drafter, acceptance_check, controller, self._clock
        )


def as_config(config: ClientConfig | str | None) -> ClientConfig:
    """Return the configuration that a client was given, if only the server's address. Raises UsageError."""
    if not isinstance(config, ClientConfig | str | None):
        raise UsageError(f"config is of type {type(config).__name__}: give a ClientConfig, or HOST:PORT as text")
    return ClientConfig(config) if isinstance(config, str) else config or ClientConfig()


async def _close(context: GenerationContext) -> None:
    await context.session.close()
    for drafting in (context.drafting, context.writing, context.fallback_drafter):
        if drafting is not None:
            await drafting.close()
