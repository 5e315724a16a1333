"""One answer under way: the verbs that the modes are written in. Binds transcript, session, drafter, text and meter,
and turns what happens into events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider_client.config import ClientConfig
from outrider_client.detokeniser import Detokeniser
from outrider_client.drafting import DraftingThread
from outrider_client.events import (
    Committed,
    Cycle,
    Event,
    Finished,
    LinkChanged,
    RolledBack,
    Stats,
    Unverified,
    Verified,
    Warned,
)
from outrider_client.fit import Fit
from outrider_client.link_state import LinkState
from outrider_client.local_models import LocalModels
from outrider_client.own_words import OwnWords
from outrider_client.session import Session
from outrider_client.statistics import Meter, Statistics
from outrider_client.transcript import FinishReason, Origin, Outcome, Transcript
from outrider_drafters.trees.shape import TreePlan, TreeShape
from outrider_proto.errors import LinkError, Reason, Refusal
from outrider_proto.frames import Cancel, Decode, Draft, Features, Verdict
from outrider_proto.packing import TOKEN_BYTES
from outrider_proto.tree import MAX_NODES, DraftTree


@dataclass(frozen=True, slots=True)
class Equipment:
    """What all answers of a client share. `last_resort` drafts where `drafting` is not there or cannot."""

    models: LocalModels
    session: Session
    transcript: Transcript
    drafting: DraftingThread | None
    last_resort: DraftingThread
    fit: Fit
    clock: Callable[[], float]


class Answer:
    """From prompt to Finished. `emit` is called with every event, in order."""

    def __init__(self, equipment: Equipment, config: ClientConfig, emit: Callable[[Event], None]) -> None:
        self.config = config
        self.session = equipment.session
        self.finished = False
        self._models = equipment.models
        self._transcript = equipment.transcript
        self._drafting = equipment.drafting
        self._clock = equipment.clock
        self._emit = emit
        self._text = Detokeniser(equipment.models.decode)
        self._meter = Meter(self._clock(), () if self._drafting is None else self._drafting.names)
        last_resort = equipment.last_resort if config.last_resort == "lookup" else None
        self._words = OwnWords(self._models, self._drafting, last_resort, self._meter, equipment.fit)
        self._bytes_before = self.session.num_bytes
        self._request: Draft | Decode | None = None
        self._asked_at = 0.0
        self._speechless = False  # the drafter has nothing to say before it hears from the target again
        self._rows_complete_for = 0  # seq of the newest draft whose features have all come

    def begin(self, prompt: Sequence[int]) -> None:
        """Take the prompt in; what it shares with the tokens before it need not be sent or read again."""
        if len(prompt) >= self._models.max_context:
            room = self._models.max_context
            raise Refusal(Reason.CONTEXT_FULL, f"prompt has {len(prompt)} tokens: the target's context is {room}")
        self._take_arrived()
        common = self._transcript.begin(prompt, self.config.max_new_tokens)
        if self._drafting is not None:
            self._drafting.begin(common)
        self._words.begin(prompt)
        self.session.watcher = lambda state, detail: self._emit(LinkChanged(state, detail))
        if self.session.state is LinkState.CONNECTING and self.config.mode != "offline":
            self._emit(LinkChanged(LinkState.CONNECTING))

    # -- with the link ------------------------------------------------------------------------------------------------

    async def grow_tree(self) -> DraftTree:
        """The drafter's guess at what follows; empty for the prompt, or without a drafter."""
        plan = self._plan()
        if self._drafting is None or plan is None or self._transcript.num_new_tokens == 0:
            return DraftTree()
        started = self._clock()
        tree = await self._words.draft(self._transcript.tokens, self._transcript.num_new_tokens, plan)
        self._meter.drafted(self._clock() - started)
        return tree

    async def verify(self, tree: DraftTree) -> Verdict:
        """The target's verdict on the tree under the last token that stands."""
        known = 0 if self._drafting is None else self._drafting.num_features
        self._ask(self._transcript.next_draft(tree, known))
        return await self.next_verdict()

    async def verify_tail(self) -> Verdict:
        """The target's verdict on the first unverified tokens."""
        return await self.verify(self._transcript.tail_chain(self._max_nodes))

    def ask_decode(self) -> None:
        """Let the target write the rest alone."""
        self._ask(self._transcript.next_decode())

    async def next_verdict(self) -> Verdict:
        """The next one that answers the request in flight. Raises LinkError."""
        timeout_s = self.config.timeouts.verdict_s
        while (reply := await self.session.link.receive(timeout_s)) is not None:
            if isinstance(reply, Features):
                self._take_rows(reply)
            elif self._transcript.awaits(reply.seq):
                return self._measured(reply)
        raise LinkError(f"no verdict within {timeout_s:g} s")

    def commit(self, verdict: Verdict) -> None:
        """Let the verdict stand."""
        assert self._request is not None
        had_tail = self._transcript.tail_len > 0
        outcome = self._transcript.apply(verdict, self._models.vocab_size)
        self._speechless = False
        if isinstance(self._request, Draft) and self._request.tree.tokens and not had_tail:
            self._judge(self._request.tree, verdict)
        self._emit(Cycle(self._request, verdict))
        self._report(outcome)
        self._emit(Stats(self.statistics()))
        if outcome.finish is not None:
            self.finish(outcome.finish)

    async def take_features(self) -> None:
        """Wait for the features of the last draft, as far as anyone wants them."""
        if self._drafting is None or not self._drafting.tap.fingerprint or self.finished or self._request is None:
            return
        started = self._clock()
        give_up_at = started + self.config.timeouts.features_s
        while self._rows_complete_for < self._request.seq and (left := give_up_at - self._clock()) > 0:
            reply = await self.session.link.receive(left)
            if isinstance(reply, Features):
                self._take_rows(reply)
        self._meter.waited(self._clock() - started)

    async def warm_drafter(self) -> None:
        """Let the drafter read what the target wrote, so that it can take over at once."""
        if self._drafting is not None:
            await self._drafting.follow(self._transcript.tokens)

    # -- without it ---------------------------------------------------------------------------------------------------

    @property
    def can_write_alone(self) -> bool:
        """Whether a drafter or the last resort is there and has something left to say."""
        return (
            self._words.any
            and self._transcript.room > 0
            and len(self._transcript.tokens) < self._max_context
            and not self._ended
            and not self._speechless
        )

    async def write_alone(self) -> None:
        """One token by the drafter, or else by the last resort, unverified, if either can tell."""
        token = await self._words.write(self._transcript.tokens, self.config.sampling)
        if token is None:
            self._speechless = True
            return
        first = self._transcript.num_new_tokens
        self._transcript.write_unverified(token)
        self._meter.tokens_came(self._clock())
        self._emit(Unverified(first, (token,), self._text.push((token,))))

    @property
    def has_tail(self) -> bool:
        return self._transcript.tail_len > 0

    def keep_tail(self) -> None:
        """Let the unverified tokens stand, unverified as they are."""
        if not self.has_tail:
            return
        self._transcript.keep_tail()
        if self._ended or self._transcript.room <= 0 or len(self._transcript.tokens) >= self._max_context:
            self.finish("unverified")

    @property
    def patience_s(self) -> float:
        """How long to wait for the link when the drafter is done; one attempt at least is seen to its end."""
        return max(self.config.wait_for_link_s, self.session.untried_s)

    async def lose_link(self, error: Exception) -> None:
        self._meter.went_offline(self._clock())
        await self.session.lose(str(error))

    def caught_up(self) -> None:
        """The server knows all that stands."""
        self.session.caught_up()
        self._meter.came_back(self._clock())

    # -- its end ------------------------------------------------------------------------------------------------------

    def finish(self, reason: FinishReason) -> None:
        self.finished = True
        self.session.caught_up()  # if it was coming back, it has: nothing is left to judge
        self._emit(Finished(reason, self.statistics(), self._text.finish()))

    def finish_alone(self) -> None:
        """There will be no link in time."""
        self.finish("unverified" if self._transcript.new_origins[-1:] == ("unverified",) else "link")

    def abandon(self) -> None:
        """The caller wants no more; the session stays usable."""
        if isinstance(self._request, Decode) and self.session.state is LinkState.ONLINE and not self.finished:
            self.session.link.send(Cancel(self._request.seq))

    def statistics(self) -> Statistics:
        up, down = self.session.num_bytes
        origins = self._transcript.new_origins
        return self._meter.snapshot(
            self._clock(),
            new_tokens=len(origins),
            unverified=origins.count("unverified"),
            bytes_up=up - self._bytes_before[0],
            bytes_down=down - self._bytes_before[1],
            rtt_s=self.session.rtt.mean_s or 0.0,
        )

    # -- inside -------------------------------------------------------------------------------------------------------

    def _judge(self, tree: DraftTree, verdict: Verdict) -> None:
        warning = self._words.judge(tree, verdict)
        if warning is not None:
            self._emit(Warned(warning))

    def _take_arrived(self) -> None:
        """Features of the answer before that have come by now."""
        with contextlib.suppress(LinkError, Refusal):  # whoever needs the link will see
            while (reply := self.session.link.receive_nowait()) is not None:
                if isinstance(reply, Features):
                    self._take_rows(reply)

    @property
    def _max_context(self) -> int:
        limits = self.session.limits
        return limits.max_context if limits is not None else self._models.max_context

    @property
    def _max_nodes(self) -> int:
        limits = self.session.limits
        return limits.max_nodes if limits is not None else MAX_NODES

    @property
    def _ended(self) -> bool:
        """Whether the last token ends the answer."""
        return self._transcript.last_new_token in self._models.eos_token_ids

    def _plan(self) -> TreePlan | None:
        """The tree asked for, or the drafter's own, as far as the context and the server's limit have room for it."""
        own = None if self._models.drafter is None else self._models.drafter.plan
        plan = self.config.shape or own or TreeShape()
        levels = self._max_context - len(self._transcript.tokens) - 1  # the bonus needs room too
        return plan.fitted(levels, self._max_nodes)

    def _ask(self, request: Draft | Decode) -> None:
        num_rows = request.base_len + len(request.context) + 1 - getattr(request, "features_from", 0)
        width = 0 if self._drafting is None or isinstance(request, Decode) else self._drafting.tap.width
        self._request = request
        self._asked_at = self._clock()
        self.session.link.send(request, TOKEN_BYTES * len(request.context) + num_rows * width)

    def _measured(self, verdict: Verdict) -> Verdict:
        now = self._clock()
        self._meter.verdict(verdict, now - self._asked_at)
        self._asked_at = now  # the next token of a Decode follows from here
        self.session.proved()
        return verdict

    def _take_rows(self, features: Features) -> None:
        if self._drafting is not None:
            num_rows = self._transcript.num_usable_rows(features)
            self._drafting.add_features(features.first, features.rows[:num_rows])
        self._meter.tapped(features.tap_us / 1e6)
        if features.last:
            self._rows_complete_for = max(self._rows_complete_for, features.seq)

    def _report(self, outcome: Outcome) -> None:
        """What a verdict changed, as events in the order in which it changed."""
        first = outcome.first - self._transcript.prompt_len
        after = first + outcome.confirmed
        if outcome.confirmed:
            self._emit(Verified(first, outcome.confirmed))
        if outcome.dropped:
            self._meter.rolled_back(outcome.dropped)
            self._emit(RolledBack(after, outcome.dropped, self._text.roll_back(after)))
        self._append(after, outcome.accepted, "accepted")
        self._append(after + len(outcome.accepted), outcome.bonus, outcome.bonus_origin)

    def _append(self, first: int, tokens: tuple[int, ...], origin: Origin) -> None:
        if tokens:
            self._meter.tokens_came(self._clock())
            self._emit(Committed(first, tokens, origin, self._text.push(tokens)))
