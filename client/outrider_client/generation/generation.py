"""A running generation: the verbs that the mode loops are written in. Binds transcript, session, drafter and meter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outrider_client.connection.link_state import LinkState
from outrider_client.controller.measurements import OnlineMode
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import OTHER_TARGET, WAITING, Cycle, Event, LinkChanged, Stats, Warned
from outrider_client.core.statistics import Statistics
from outrider_client.drafting.drafting_thread import AheadDraft, PreDraftSpec
from outrider_client.drafting.local_drafter import LocalDrafter
from outrider_client.generation.context import GenerationContext
from outrider_client.generation.event_emitter import EventEmitter
from outrider_client.generation.instruments import Instruments
from outrider_client.generation.offline_writer import OfflineWriter
from outrider_client.generation.prompt_handover import PromptHandover
from outrider_client.generation.requests import EMPTY_DRAFT, PendingRequest, RequestTracker
from outrider_client.generation.tree_planner import TreePlanner
from outrider_client.text.detokenizer import Detokenizer
from outrider_client.text.placeholder_restorer import PlaceholderRestorer
from outrider_client.text.repetition import goes_in_circles
from outrider_client.text.transcript import FinishReason
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import TreeOutcome
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, ServerTree, Verdict


class Generation:
    """One answer from prompt to Finished.

    `emit` is called with every event in order. In their texts `values` replace their placeholders.
    """

    def __init__(
        self,
        context: GenerationContext,
        config: ClientConfig,
        emit: Callable[[Event], None],
        values: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.session = context.session
        self.finished = False
        self._models = context.models
        self._transcript = context.transcript
        self._drafting = context.drafting
        self._clock = context.clock
        self._controller = context.controller
        names = () if self._drafting is None else self._drafting.names
        self._instruments = Instruments(self.session, self._controller, names, self._clock)
        self._meter = self._instruments.meter
        self._events = EventEmitter(
            emit, PlaceholderRestorer(Detokenizer(context.models.decode), values or {}), self._meter
        )
        fallback_drafter = context.fallback_drafter if config.last_resort == "lookup" else None
        self._local_drafter = LocalDrafter(
            self._models, self._drafting, context.writing, fallback_drafter, self._meter, context.acceptance_check
        )
        self.planner = TreePlanner(config, context)
        self._requests = RequestTracker(self.session, self._transcript, self._drafting, self._instruments)
        self.handover = PromptHandover(config, context, self._requests)
        self.offline = OfflineWriter(config, context, self._local_drafter, self.planner, self._events)
        self._mode: OnlineMode = "stream"
        self._judged_request: PendingRequest | None = None  # the request that the newest verdict answers
        self._is_distrusted = False  # another target wrote what this one has not verified yet

    def begin(self, prompt: Sequence[int]) -> None:
        """Start from `prompt`; what it shares with the session's tokens is not sent or read again."""
        self.config = self.config.for_answer_from(len(prompt))
        rules = self._models.rules_of(self.config.sampling.rules)
        if len(prompt) >= self._models.max_context:
            room = self._models.max_context
            raise Refusal(Reason.CONTEXT_FULL, f"prompt has {len(prompt)} tokens: the target's context is {room}")
        # Before the transcript begins: rows that arrive late still belong to the previous answer's positions.
        self._requests.take_arrived()
        # One more than there is room for: where the context ends first, the answer ends for that reason.
        limit = min(self.config.max_new_tokens, self._models.max_context - len(prompt) + 1)
        common = self._transcript.begin(prompt, limit, self.config.logprobs)
        if self._drafting is not None:
            self._drafting.begin(common)
        self._local_drafter.begin(prompt, rules)
        self.planner.begin()
        self.session.watcher = lambda state, detail: self._events.emit(LinkChanged(state, detail))
        if self.session.state is LinkState.CONNECTING and self.config.mode != "offline":
            self._events.emit(LinkChanged(LinkState.CONNECTING))

    # -- with the link ------------------------------------------------------------------------------------------------

    async def draft(self) -> ScoredTree:
        """Draft the continuation; empty right after the prompt or without a drafter. Raises LinkError."""
        if self._drafting is None or self._transcript.num_new_tokens == 0:
            return EMPTY_DRAFT
        await self.handover.await_features()
        return await self._grow()

    async def _grow(self) -> ScoredTree:
        plan = self.planner.plan(len(self._transcript.tokens), self._transcript.room)
        if plan is None:
            return EMPTY_DRAFT
        started = self._clock()
        routed = await self._local_drafter.draft(self._transcript.tokens, self._transcript.num_new_tokens, plan)
        self._instruments.drafted(started, routed.num_passes)
        return routed.drafted

    def within_rules(self, text: Sequence[int], drafted: ScoredTree) -> ScoredTree:
        """Return what of a draft below `text` the answer's rules allow: the rest need not travel."""
        return self._local_drafter.within_rules(text, drafted)

    def send(self, drafted: ScoredTree) -> Draft:
        """Send a draft below the last committed token; other requests in flight become void."""
        draft = self._transcript.next_draft(drafted.tree, self._requests.known_features, self._controller.codec)
        self._requests.send(draft, drafted, self._local_drafter.head)
        return draft

    def send_ahead(self, text: Sequence[int], drafted: ScoredTree) -> Draft:
        """Send a draft that assumes the text will be `text` by then."""
        draft = self._transcript.next_ahead(text, drafted.tree, self._controller.codec)
        self._requests.send(draft, drafted, self._local_drafter.head)
        return draft

    def draft_ahead(self, text: Sequence[int], drafted: ScoredTree) -> AheadDraft | None:
        """Start to draft for the outcomes of a draft in flight on `text`; None if that is impossible."""
        deepest = len(text) + max(drafted.tree.depths(), default=0) + 1  # deepest position of the next root
        plan = self.planner.plan(deepest, self._transcript.limit_len - len(text) - 1, ahead=True)
        if self._drafting is None or plan is None or self._transcript.num_new_tokens == 0 or not self.has_room(text):
            return None
        wanted = PreDraftSpec(plan, self._controller.outcomes, self._models.eos_token_ids)
        return self._local_drafter.draft_ahead(text, drafted.tree, wanted, self._requests.await_rows)

    def has_room(self, text: Sequence[int]) -> bool:
        """Return whether the answer may continue after `text`."""
        return len(text) < self._transcript.limit_len

    @property
    def num_in_flight(self) -> int:
        """Number of drafts to keep in flight."""
        choice = self._controller.choice
        return self.config.in_flight if choice is None else choice.in_flight

    def is_awaited(self, draft: Draft) -> bool:
        """Return whether the next verdict is on `draft`."""
        return self._transcript.awaits(draft.seq)

    @property
    def text(self) -> tuple[int, ...]:
        """All tokens so far."""
        return tuple(self._transcript.tokens)

    async def verify(self, drafted: ScoredTree) -> Verdict:
        """Send a draft below the last committed token and wait for its verdict."""
        self.send(drafted)
        return await self.next_verdict()

    async def verify_tail(self) -> Verdict:
        """Have the target verify the first unverified tokens."""
        return await self.verify(ScoredTree(self._transcript.tail_chain(self.planner.max_nodes)))

    def ask_decode(self, tree: ServerTree | None = None, *, features: bool = False) -> None:
        """Let the server write the rest, by its target or by its drafter that grows `tree`, and send features along."""
        known = self._requests.known_features if features and self._drafting is not None else None
        self._requests.send(
            self._transcript.next_decode(known, tree, None if known is None else self._controller.codec)
        )

    async def stop_decode(self) -> None:
        """Stop the server's decoding; commit what arrives until it has stopped. Raises LinkError."""
        request = self._transcript.awaited
        if isinstance(request, Decode) and not self.finished:
            self._requests.cancel(request)
        while isinstance(self._transcript.awaited, Decode) and not self.finished:
            self.commit(await self.next_verdict())

    def decide(self) -> OnlineMode:
        """Return the mode to use next, among those that server and drafter allow."""
        return self._controller.decide(self.session.limits, self.session.rtt, self.planner.draft_nodes).mode

    def enter_mode(self, mode: OnlineMode) -> None:
        self._mode = mode
        self._controller.enter_mode(mode)

    @property
    def should_continue(self) -> bool:
        """Return whether the current loop should go on: the answer is unfinished and no other mode is better."""
        return not self.finished and (not self.is_auto or self.decide() == self._mode)

    @property
    def is_auto(self) -> bool:
        return self.config.mode == "auto"

    @property
    def affords_features(self) -> bool:
        """Return whether `auto` may have features sent along with what the server writes."""
        return self.is_auto and self._controller.affords_features

    async def next_verdict(self) -> Verdict:
        """Wait for the verdict on the oldest request. Raises LinkError."""
        self._judged_request, verdict = await self._requests.next_verdict(self.config.timeouts.verdict_s)
        return verdict

    def commit(self, verdict: Verdict) -> None:
        """Apply the latest verdict to the transcript and emit its events."""
        judged, had_tail = self._judged_request, self._transcript.tail_len > 0
        assert judged is not None
        change = self._transcript.apply(verdict, self._models.vocab_size)
        self.offline.verdict_arrived()
        # Unverified tokens were written offline and not drafted for this request: their verdict says nothing of drafts.
        if not had_tail:
            self._judge(judged, verdict)
            is_last = change.finish is not None
            self._controller.record_verdict(judged.request, verdict, stale=judged.stale, is_last=is_last)
        self._events.emit(Cycle(judged.request, verdict))
        self._events.emit_change(change, self._transcript.prompt_len, self._clock())
        self._events.emit(Stats(self.statistics()))
        if change.finish is not None:
            self.finish(change.finish)
        elif self.config.stop_loops and not self.has_tail and goes_in_circles(self._transcript.new_tokens):
            self.abandon()
            self.finish("repetition")

    async def take_ahead_draft(self, ahead_draft: AheadDraft, outcome: TreeOutcome) -> ScoredTree | None:
        """Return the draft made ahead for `outcome`, once it is finished; None without one."""
        started = self._clock()
        drafted = await ahead_draft.draft_for(outcome)
        self._instruments.ahead_draft_judged(ahead_draft, outcome, drafted, started)
        return drafted

    def drop_ahead_draft(self, ahead_draft: AheadDraft) -> None:
        """Cancel drafts for outcomes that can no longer occur."""
        self._meter.wasted_nodes += ahead_draft.num_nodes
        ahead_draft.cancel()

    async def update_drafter(self) -> None:
        """Let the drafter read what the target wrote, so that it can take over without delay."""
        if self._drafting is None:
            return
        tokens = tuple(self._transcript.tokens)
        self._controller.record_text(tokens)
        if self._controller.wants_trial and self.handover.has_features:
            self._controller.record_trial(len(tokens), (await self._grow()).tree)
        else:
            await self._drafting.follow(tokens)

    # -- without it ---------------------------------------------------------------------------------------------------

    @property
    def has_tail(self) -> bool:
        return self._transcript.tail_len > 0

    def keep_tail(self) -> None:
        if not self.has_tail or self._is_distrusted:
            return
        self._transcript.keep_tail()
        if not self.offline.has_room:
            self.finish("unverified")

    def await_link(self) -> None:
        """Tell that nothing is left to write here, if the link is waited for."""
        if self.session.state is LinkState.OFFLINE and self.config.wait_for_link_s:
            self._events.emit(Warned(WAITING))

    async def lose_link(self, error: Exception) -> None:
        self._meter.went_offline(self._clock())
        self._requests.lost()
        await self.session.disconnect(str(error))

    def caught_up(self) -> None:
        """Note that the server holds all tokens again."""
        self._is_distrusted = False
        self.session.caught_up()
        self._meter.came_back(self._clock())

    def distrust_other_target(self) -> None:
        """Where the server came back with another target, have this one verify the answer from its start."""
        if not self.session.has_other_target:
            return
        self.session.has_other_target, self._is_distrusted = False, True
        self._events.emit(Warned(OTHER_TARGET))
        if self._drafting is not None:
            self._drafting.begin(0)  # what it has read are features of another model
        self._events.emit_distrusted(self._transcript.distrust())

    # -- its end ------------------------------------------------------------------------------------------------------

    def finish(self, reason: FinishReason) -> None:
        self.finished = True
        self.session.caught_up()  # if it was resuming, it is done: nothing is left to verify
        self._events.emit_finished(reason, self.statistics())

    def finish_offline(self) -> None:
        self.finish("unverified" if self._transcript.new_origins[-1:] == ("unverified",) else "link")

    def abandon(self) -> None:
        """Stop early on the caller's behalf; the session stays usable."""
        request = self._requests.newest
        if isinstance(request, Decode) and self.session.state is LinkState.ONLINE and not self.finished:
            self.session.link.cancel(request)

    def statistics(self) -> Statistics:
        origins = self._transcript.new_origins
        return self._instruments.statistics(len(origins), origins.count("unverified"))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _judge(self, judged: PendingRequest, verdict: Verdict) -> None:
        if isinstance(judged.request, Decode):
            if judged.request.tree is not None and verdict.bonus is not None:
                num_nodes = min(judged.request.tree.budget, self.planner.draft_nodes)
                self._meter.judged(num_nodes, len(verdict.tokens))
        elif judged.drafted.tree.tokens:
            self._controller.record_tree(judged.drafted, verdict)
            if warning := self._local_drafter.judge(judged.drafted, judged.head, verdict):
                self._events.emit(Warned(warning))
