"""The asynchronous client: one session with one server, any number of answers one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

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
from outrider_client.core.prompt import Segment, dropped_warning, is_private
from outrider_client.core.statistics import Statistics
from outrider_client.drafting.drafting_thread import AsyncDrafter, DraftingThread
from outrider_client.drafting.local_drafter import AcceptanceCheck
from outrider_client.generation.context import GenerationContext
from outrider_client.generation.generation import Generation
from outrider_client.generation.runner import run_generation
from outrider_client.models.local_models import LocalModels, Prompt
from outrider_client.privacy.placeholders import Placeholders
from outrider_client.privacy.private_generation import generate_privately
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.transcript import FinishReason, Origin, Transcript
from outrider_drafters.emulation.pace import Pace
from outrider_drafters.families.lookup.drafter import LookupDrafter
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_proto.errors import LinkError, Reason, Refusal, UsageError
from outrider_proto.frames import ServerDescription

CLOSED = "this client is closed: make a new one"
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
    """Drafts on this device and has a server verify its drafts. Use as `async with AsyncClient(config) as client`.

    `models` and `transport` are made from the configuration unless given; given ones may be shared between clients.
    `drafting` replaces the thread that runs the models' drafter. `clock` returns seconds.
    """

    def __init__(
        self,
        config: ClientConfig | None = None,
        *,
        models: LocalModels | None = None,
        transport: Transport | None = None,
        drafting: AsyncDrafter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = config if config is not None else ClientConfig()
        self._models = models
        self._transport = transport if transport is not None else GrpcTransport(self.config.server, self.config.access)
        self._given_drafting = drafting
        self._clock = clock
        self._context: GenerationContext | None = None
        self._placeholders = Placeholders()
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that this client was last used in
        self._is_read = False  # somebody reads the events of an answer
        self._writing: asyncio.Task[None] | None = None  # the newest answer
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
        """Tokens of the session so far; empty before the first answer."""
        return () if self._context is None else self._context.transcript.tokens

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Bytes sent and received over all answers."""
        return (0, 0) if self._context is None else self._context.session.num_bytes

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
        await self._begin_answer()
        # A queue between writing and reading: a slow reader must not delay verdicts, drafts or heartbeats.
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        writing = asyncio.create_task(self._write(prompt, config, events.put_nowait), name="outrider answer")
        self._writing = writing
        writing.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            if writing.cancelled():  # by close(); awaited, it would look as if the caller were cancelled
                raise UsageError(CLOSED)
            await writing
        finally:
            self._is_read = False
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
            written.text,
            written.token_ids,
            written.origins,
            finished.reason,
            finished.statistics,
            written.logprobs,
        )

    async def close(self) -> None:
        """End the answer that is being written, close the session and stop the drafter. Safe to call twice."""
        self._enter_loop()
        self._is_closed = True
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        context, self._context = self._context, None
        if context is not None:
            await context.session.close()
            for drafting in (context.drafting, context.fallback_drafter):
                if drafting is not None:
                    await drafting.close()
        await self._transport.close()

    def _enter_loop(self) -> None:
        """Move to the running event loop if the former one has ended. Raises UsageError while it has not."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise UsageError("this client is in use in another event loop: use one client for each")
        if self._context is not None:
            self._context.session.leave_loop()
        self._loop, self._writing, self._is_read = loop, None, False

    async def _begin_answer(self) -> None:
        """Wait until an answer that nobody reads any more has ended. Raises UsageError while somebody does."""
        self._enter_loop()
        # After `break` the event loop closes the generator by itself: one turn to make a task of that, one to begin it.
        for _ in range(2):
            if self._is_read:
                await asyncio.sleep(0)
        if self._is_read:
            raise UsageError("this client is writing an answer already: use one client for each session")
        self._is_read = True
        try:
            if self._writing is not None:
                await asyncio.wait({self._writing})
            if self._is_closed:
                raise UsageError(CLOSED)
        except BaseException:
            self._is_read = False
            raise

    async def _write(self, prompt: Prompt, config: ClientConfig, emit: Callable[[Event], None]) -> None:
        context = await self._prepare()
        try:
            if config.privacy == "local" and is_private(prompt):
                await generate_privately(context, prompt, config, emit)
            else:
                await self._generate(context, prompt, config, emit)
        finally:
            context.session.watcher = lambda state, detail: None

    async def _generate(
        self, context: GenerationContext, prompt: Prompt, config: ClientConfig, emit: Callable[[Event], None]
    ) -> None:
        shown = self._placeholders.replace(prompt) if config.privacy == "placeholder" else prompt
        generation = Generation(context, config, emit, self._placeholders.values)
        # Outside the try: a prompt that is refused here was not sent, so the session stays as it is. In a thread: a
        # long prompt takes seconds to tokenize, and heartbeats and all other answers of this loop would wait.
        encoded = await asyncio.to_thread(
            context.models.encode_newest,
            shown,
            raw=config.raw,
            reserve=config.max_new_tokens,
            on_full=config.on_full_context,
        )
        if encoded.num_dropped:
            emit(Warned(dropped_warning(encoded.num_dropped)))
        # In a thread before: a schema takes milliseconds to compile, and may take much longer.
        await asyncio.to_thread(context.models.rules_of, config.sampling.rules)
        # Private conversations neither read nor fill the history: not even what was said of their placeholders.
        history = None if is_private(prompt) else context.models.history
        if isinstance(context.drafting, DraftingThread):
            context.drafting.read_history(None if history is None else await asyncio.to_thread(history.texts))
        for warning in () if history is None else history.take_warnings():
            emit(Warned(warning))
        generation.begin(encoded.tokens)
        try:
            await context.session.set_sampling(generation.config.sampling)
            await run_generation(generation)
            if history is not None:
                await asyncio.to_thread(history.add, context.transcript.verified_tokens)
        except (asyncio.CancelledError, UsageError):
            generation.abandon()
            raise
        except Exception as error:
            if isinstance(error, Refusal) and error.reason is Reason.SERVER_FULL:
                generation.abandon()  # a full server keeps the session until there is a place for it
            else:
                # What the server holds is unknown now, so the next answer opens a session of its own.
                await context.session.reset()
            raise

    async def _prepare(self) -> GenerationContext:
        if self._context is None:
            if self._models is None:
                self._models = await asyncio.to_thread(LocalModels.load, self.config)
            await asyncio.to_thread(self._models.prepare)
            self._context = self._new_context(self._models)
        return self._context

    def _new_context(self, models: LocalModels) -> GenerationContext:
        transcript = Transcript()
        open_frame = models.open_frame(self.config.codec, self.config.sampling)
        policy = ConnectionPolicy(self.config.timeouts, self.config.patience, self.config.backoff)
        session = ClientSession(self._transport, open_frame, transcript, policy, self._clock, random.Random())
        drafting = self._given_drafting
        if drafting is None and models.drafter is not None:
            drafting = DraftingThread(models.drafter, models.drafter_threads)
        fallback_drafter = DraftingThread(LookupDrafter(models.vocab_size, shortest=FALLBACK_MIN_MATCH))
        pace = None if self.config.pace is None else Pace.load(self.config.pace)
        controller = ModeController(drafting, pace, self._clock)
        hints = {}
        if models.drafter is not None:
            heads = RoutedDrafter.of(models.drafter)
            hints = {name: getattr(head, "hint", "") for name, head in zip(heads.names, heads.heads, strict=True)}
        acceptance_check = AcceptanceCheck(models.vocab_size, hints)
        return GenerationContext(
            models, session, transcript, drafting, fallback_drafter, acceptance_check, controller, self._clock
        )
