"""A running generation: the verbs that the mode loops are written in. Binds transcript, session, drafter and meter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outrider_client.connection.link_state import LinkState
from outrider_client.controller.choice import SPLIT, OnlineMode
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Cycle, Event, LinkChanged, Stats, Warned
from outrider_client.core.statistics import Meter, Statistics
from outrider_client.drafting.drafting_thread import AheadDraft, PreDraftSpec
from outrider_client.drafting.local_drafter import LocalDrafter
from outrider_client.generation.context import GenerationContext
from outrider_client.generation.event_emitter import EventEmitter
from outrider_client.generation.requests import EMPTY_DRAFT, PendingRequest, RequestTracker
from outrider_client.generation.tree_planner import TreePlanner
from outrider_client.text.detokenizer import Detokenizer
from outrider_client.text.placeholder_restorer import PlaceholderRestorer
from outrider_client.text.transcript import FinishReason
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import TreeOutcome
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Cancel, Decode, Draft, ServerTree, Verdict


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
        self._meter = Meter(self._clock(), () if self._drafting is None else self._drafting.names)
        self._events = EventEmitter(
            emit, PlaceholderRestorer(Detokenizer(context.models.decode), values or {}), self._meter
        )
        fallback_drafter = context.fallback_drafter if config.last_resort == "lookup" else None
        self._local_drafter = LocalDrafter(
            self._models, self._drafting, fallback_drafter, self._meter, context.acceptance_check
        )
        self._controller = context.controller
        self.planner = TreePlanner(config, context.models, context.session, context.controller)
        self._requests = RequestTracker(
            self.session, self._transcript, self._drafting, self._meter, self._controller, self._clock
        )
        self._bytes_before = self.session.num_bytes
        self._mode: OnlineMode = "stream"
        self._judged_request: PendingRequest | None = None  # the request that the newest verdict answers
        self._drafter_exhausted = False  # no drafter can write before the next verdict
        self._rules: AnswerRules | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        """Start from `prompt`; what it shares with the session's tokens is not sent or read again."""
        self.config = self.config.for_answer_from(len(prompt))
        self._rules = self._models.rules_of(self.config.sampling.rules)
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
        self._local_drafter.begin(prompt)
        self.planner.begin()
        self.session.watcher = lambda state, detail: self._events.emit(LinkChanged(state, detail))
        if self.session.state is LinkState.CONNECTING and self.config.mode != "offline":
            self._events.emit(LinkChanged(LinkState.CONNECTING))

    # -- with the link ------------------------------------------------------------------------------------------------

    async def draft(self) -> ScoredTree:
        """Draft the continuation; empty right after the prompt or without a drafter. Raises LinkError."""
        if self._drafting is None or self._transcript.num_new_tokens == 0:
            return EMPTY_DRAFT
        await self._await_features()
        return await self._grow()

    async def _grow(self) -> ScoredTree:
        plan = self.planner.next_plan(len(self._transcript.tokens), self._transcript.room)
        if plan is None:
            return EMPTY_DRAFT
        started = self._clock()
        routed = await self._local_drafter.draft(self._transcript.tokens, self._transcript.num_new_tokens, plan)
        self._meter.drafted(drafting_s := self._clock() - started)
        self._meter.levels_drafted(drafting_s, routed.num_passes)
        self._controller.record_drafting(drafting_s, routed.num_passes)
        return self.within_rules(self._transcript.tokens, routed.drafted)

    def within_rules(self, text: Sequence[int], drafted: ScoredTree) -> ScoredTree:
        """Return what of a draft below `text` the answer's rules allow: the rest need not travel."""
        if self._rules is None:
            return drafted
        return drafted.part(self._rules.allowed(text[self._rules.answer_from :], drafted.tree))

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
        plan = self.planner.ahead_plan(deepest, self._transcript.limit_len - len(text) - 1)
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
        """Let the server write the rest, by the target alone or with its own drafter that grows `tree`.

        `features`: have the features of what it reads and writes sent along.
        """
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
        """Note that the loop of `mode` begins."""
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

    @property
    def should_decode_first(self) -> bool:
        """Return whether the server should decode alone while the prompt's features are on their way."""
        drafting, transcript = self._drafting, self._transcript
        if (
            not self.config.opening
            or drafting is None
            or not drafting.tap.fingerprint
            or drafting.tap.newest_only
            or transcript.num_new_tokens
        ):
            return False
        return self._controller.should_decode_first(transcript.prompt_len - drafting.num_features, self.session.rtt)

    @property
    def has_prompt_features(self) -> bool:
        return self._drafting is None or self._drafting.num_features >= self._transcript.prompt_len

    async def await_prompt_features(self) -> bool:
        """Wait for the prompt's features or the next verdict; return whether drafting can start. Raises LinkError.

        It can if the features have arrived, or will have by the time that the server has stopped decoding.
        """
        await self._requests.rows_or_verdict(self._can_start_drafting, self.config.timeouts.verdict_s)
        return self._can_start_drafting()

    async def next_verdict(self) -> Verdict:
        """Wait for the verdict on the oldest request. Raises LinkError."""
        self._judged_request, verdict = await self._requests.next_verdict(self.config.timeouts.verdict_s)
        return verdict

    def commit(self, verdict: Verdict) -> None:
        """Apply the latest verdict to the transcript and emit its events."""
        judged, had_tail = self._judged_request, self._transcript.tail_len > 0
        assert judged is not None
        change = self._transcript.apply(verdict, self._models.vocab_size)
        self._drafter_exhausted = False
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

    async def take_ahead_draft(self, ahead_draft: AheadDraft, outcome: TreeOutcome) -> ScoredTree | None:
        """Return the draft made ahead for `outcome`, once it is finished; None without one."""
        started = self._clock()
        drafted = await ahead_draft.draft_for(outcome)
        self._meter.drafted(self._clock() - started)
        self._controller.record_ahead_draft(ahead_draft, outcome)
        if ahead_draft.cost is not None:
            self._meter.levels_drafted(ahead_draft.cost.seconds, ahead_draft.cost.levels, ahead=True)
        if ahead_draft.num_nodes:
            self._meter.predrafted(drafted is not None)
            self._meter.wasted(ahead_draft.num_nodes - (0 if drafted is None else len(drafted.tree)))
        return drafted

    def drop_ahead_draft(self, ahead_draft: AheadDraft) -> None:
        """Cancel drafts for outcomes that can no longer occur."""
        self._meter.wasted(ahead_draft.num_nodes)
        ahead_draft.cancel()

    async def update_drafter(self) -> None:
        """Let the drafter read what the target wrote, so that it can take over without delay."""
        if self._drafting is None:
            return
        tokens = tuple(self._transcript.tokens)
        self._controller.record_text(tokens)
        if self._controller.wants_trial and self.has_prompt_features:
            self._controller.record_trial(len(tokens), (await self._grow()).tree)
        else:
            await self._drafting.follow(tokens)

    # -- without it ---------------------------------------------------------------------------------------------------

    @property
    def can_write_offline(self) -> bool:
        """Return whether a drafter or the fallback drafter can continue the answer."""
        return (
            self._local_drafter.can_write
            and self._transcript.room > 0
            and len(self._transcript.tokens) < self.planner.max_context
            and not self._has_ended
            and not self._drafter_exhausted
        )

    async def write_offline(self) -> None:
        """Write one unverified token by the drafter, or else by the fallback drafter, if either can."""
        # An answer that begins with a copy recites the chat's system prompt or an earlier answer.
        may_copy = self.config.raw or self._transcript.num_new_tokens > 0
        tokens, sampling = self._transcript.tokens, self.config.sampling
        token = await self._local_drafter.write(tokens, sampling, self._rules, may_copy=may_copy)
        if token is None:
            self._drafter_exhausted = True
            return
        first = self._transcript.num_new_tokens
        self._transcript.write_unverified(token)
        self._events.emit_unverified(first, token, self._clock())

    @property
    def has_tail(self) -> bool:
        return self._transcript.tail_len > 0

    def keep_tail(self) -> None:
        """Keep the unverified tokens as they are."""
        if not self.has_tail:
            return
        self._transcript.keep_tail()
        if self._has_ended or self._transcript.room <= 0 or len(self._transcript.tokens) >= self.planner.max_context:
            self.finish("unverified")

    @property
    def patience_s(self) -> float:
        """Seconds to wait for the link once the drafter is exhausted: at least one attempt to reconnect."""
        return max(self.config.wait_for_link_s, self.session.first_attempt_s)

    @property
    def makes_no_progress(self) -> bool:
        """Return whether connections have opened for the time that the link may be away, and none brought a verdict."""
        return self.session.makes_no_progress(self.config.wait_for_link_s)

    async def lose_link(self, error: Exception) -> None:
        self._meter.went_offline(self._clock())
        self._requests.lost()
        await self.session.disconnect(str(error))

    def caught_up(self) -> None:
        """Note that the server holds all tokens again."""
        self.session.caught_up()
        self._meter.came_back(self._clock())

    # -- its end ------------------------------------------------------------------------------------------------------

    def finish(self, reason: FinishReason) -> None:
        self.finished = True
        self.session.caught_up()  # if it was resuming, it is done: nothing is left to verify
        self._events.emit_finished(reason, self.statistics())

    def finish_offline(self) -> None:
        """Finish without a link."""
        self.finish("unverified" if self._transcript.new_origins[-1:] == ("unverified",) else "link")

    def abandon(self) -> None:
        """Stop early on the caller's behalf; the session stays usable."""
        request = self._requests.newest
        if isinstance(request, Decode) and self.session.state is LinkState.ONLINE and not self.finished:
            self.session.link.send(Cancel(request.seq))

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

    async def _await_features(self) -> None:
        """Wait for the features without which the next draft should not be made: the prompt's, or the newest too."""
        assert self._drafting is not None
        if self._waits_for_features or self._drafting.num_features < self._transcript.prompt_len:
            await self._requests.receive_rows(self.config.timeouts.features_s)

    def _can_start_drafting(self) -> bool:
        if self._drafting is None or self.has_prompt_features:
            return True
        return self._controller.arrive_within_rtt(
            self._transcript.prompt_len - self._drafting.num_features, self.session.rtt
        )

    def _judge(self, judged: PendingRequest, verdict: Verdict) -> None:
        if isinstance(judged.request, Decode):
            if judged.request.tree is not None and verdict.bonus is not None:
                num_nodes = min(judged.request.tree.budget, self.planner.draft_nodes)
                self._meter.judged(num_nodes, len(verdict.tokens))
        elif judged.drafted.tree.tokens:
            self._controller.record_tree(judged.drafted, verdict)
            if warning := self._local_drafter.judge(judged.drafted, judged.head, verdict):
                self._events.emit(Warned(warning))

    @property
    def _waits_for_features(self) -> bool:
        if self._drafting is None:
            return False
        chosen, choice = self.config.wait_for_features, self._controller.choice
        if chosen is None and choice is not None and choice.mode in SPLIT:
            return choice.wait_for_features
        return not self._drafting.stale_tolerant if chosen is None else chosen

    @property
    def _has_ended(self) -> bool:
        """Return whether the last token is an end-of-sequence token."""
        return self._transcript.last_new_token in self._models.eos_token_ids
