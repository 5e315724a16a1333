"""Writes an answer on without its target: one unverified token after the other."""

from __future__ import annotations

from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Warned
from outrider_client.drafting.local_drafter import LocalDrafter
from outrider_client.generation.context import GenerationContext
from outrider_client.generation.event_emitter import EventEmitter
from outrider_client.generation.tree_planner import TreePlanner
from outrider_client.models.offline_drafter import NO_WRITER
from outrider_client.text.repetition import repeats_a_phrase
from outrider_proto.errors import UsageError

REPEATED = "the drafter repeats itself: it writes no further without the target"


class OfflineWriter:
    """Writes tokens of one answer by its drafter, or else by the fallback drafter."""

    def __init__(
        self,
        config: ClientConfig,
        context: GenerationContext,
        drafter: LocalDrafter,
        planner: TreePlanner,
        events: EventEmitter,
    ) -> None:
        self._config = config
        self._transcript = context.transcript
        self._drafter = drafter
        self._planner = planner
        self._events = events
        self._models = context.models
        self._ends = context.models.eos_token_ids
        self._clock = context.clock
        self._is_exhausted = False

    @property
    def has_room(self) -> bool:
        """Return whether the answer may go on: it is neither over nor as long as it may be."""
        return (
            self._transcript.room > 0
            and len(self._transcript.tokens) < self._planner.max_context
            and self._transcript.last_new_token not in self._ends
        )

    @property
    def can_write(self) -> bool:
        """Return whether a drafter can continue the answer."""
        return self._drafter.can_write and self.has_room and not self._is_exhausted

    async def write(self) -> None:
        """Write one token, if any drafter can."""
        # An answer that begins with a copy recites the chat's system prompt or an earlier answer.
        may_copy = self._config.raw or self._transcript.num_new_tokens > 0
        token = await self._drafter.write(self._transcript.tokens, self._config.sampling, may_copy=may_copy)
        if token is None:
            self._is_exhausted = True
            return
        first = self._transcript.num_new_tokens
        self._transcript.write_unverified(token)
        self._events.emit_unverified(first, token, self._clock())
        written_alone = self._transcript.new_tokens[len(self._transcript.verified_tokens) :]
        if not self._config.sampling.rules.json_schema and repeats_a_phrase(written_alone):
            self._is_exhausted = True
            self._events.emit(Warned(REPEATED))

    def check_has_written(self) -> None:
        """Raise UsageError where nothing was written because no drafter here can write."""
        if self._models.writer is None and not self._transcript.num_new_tokens:
            raise UsageError(NO_WRITER)

    def verdict_arrived(self) -> None:
        """Note that there is text which the target has read: a drafter may be able to go on from it."""
        self._is_exhausted = False
