"""One answer under way: the verbs that the modes are written in. Binds transcript, session, drafter and meter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from outrider_client.connection.link_state import LinkState
from outrider_client.controller.decision import OnlineMode
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Cycle, Event, LinkChanged, Stats, Warned
from outrider_client.core.statistics import Meter, Statistics
from outrider_client.drafting.drafting_thread import Lookout, PreDraftSpec
from outrider_client.drafting.local_drafter import OwnWords
from outrider_client.generation.context import Equipment
from outrider_client.generation.event_emitter import Telling
from outrider_client.generation.requests import NOTHING, Asked, Exchange
from outrider_client.generation.tree_planner import Plans
from outrider_client.text.detokenizer import Detokenizer
from outrider_client.text.placeholder_restorer import Restored
from outrider_client.text.transcript import FinishReason
from outrider_drafters.trees.grow import Drafted
from outrider_drafters.trees.predraft import Outcome
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Cancel, Decode, Draft, ServerTree, Verdict


class Answer:
    """From prompt to Finished. `emit` is called with every event, in order; their texts have `values` in place of their
    placeholders."""

    def __init__(
        self,
        equipment: Equipment,
        config: ClientConfig,
        emit: Callable[[Event], None],
        values: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.session = equipment.session
        self.finished = False
        self._models = equipment.models
        self._transcript = equipment.transcript
        self._drafting = equipment.drafting
        self._clock = equipment.clock
        self._meter = Meter(self._clock(), () if self._drafting is None else self._drafting.names)
        self._telling = Telling(emit, Restored(Detokenizer(equipment.models.decode), values or {}), self._meter)
        last_resort = equipment.last_resort if config.last_resort == "lookup" else None
        self._words = OwnWords(self._models, self._drafting, last_resort, self._meter, equipment.fit)
        self._pilot = equipment.pilot
        self.plans = Plans(config, equipment.models, equipment.session, equipment.pilot)
        self._exchange = Exchange(self.session, self._transcript, self._drafting, self._meter, self._pilot, self._clock)
        self._bytes_before = self.session.num_bytes
        self._mode: OnlineMode = "stream"
        self._judging: Asked | None = None  # what the newest verdict answers
        self._speechless = False  # the drafter has nothing to say before it hears from the target again

    def begin(self, prompt: Sequence[int]) -> None:
        """Take the prompt in; what it shares with the tokens before it need not be sent or read again."""
        if len(prompt) >= self._models.max_context:
            room = self._models.max_context
            raise Refusal(Reason.CONTEXT_FULL, f"prompt has {len(prompt)} tokens: the target's context is {room}")
        self._exchange.take_arrived()
        common = self._transcript.begin(prompt, self.config.max_new_tokens, self.config.logprobs)
        if self._drafting is not None:
            self._drafting.begin(common)
        self._words.begin(prompt)
        self.plans.begin()
        self.session.watcher = lambda state, detail: self._telling.tell(LinkChanged(state, detail))
        if self.session.state is LinkState.CONNECTING and self.config.mode != "offline":
            self._telling.tell(LinkChanged(LinkState.CONNECTING))

    # -- with the link ------------------------------------------------------------------------------------------------

    async def draft(self) -> Drafted:
        """The drafter's guess at what follows; empty for the prompt, or without a drafter. Raises LinkError."""
        if self._drafting is None or self._transcript.num_new_tokens == 0:
            return NOTHING
        await self._take_features()
        return await self._grow()

    async def _grow(self) -> Drafted:
        plan = self.plans.after(len(self._transcript.tokens), self._transcript.room)
        if plan is None:
            return NOTHING
        started = self._clock()
        routed = await self._words.draft(self._transcript.tokens, self._transcript.num_new_tokens, plan)
        self._meter.drafted(took_s := self._clock() - started)
        self._meter.levels_took(took_s, routed.num_passes)
        self._pilot.took_drafting(took_s, routed.num_passes)
        return routed.drafted

    def send(self, drafted: Drafted) -> Draft:
        """Have a draft under the last token that stands verified; whatever else was under way no longer counts."""
        draft = self._transcript.next_draft(drafted.tree, self._exchange.known_features, self._pilot.codec)
        self._exchange.ask(draft, drafted, self._words.head)
        return draft

    def send_ahead(self, text: Sequence[int], drafted: Drafted) -> Draft:
        """Have a draft verified for when `text` is what stands by then."""
        draft = self._transcript.next_ahead(text, drafted.tree, self._pilot.codec)
        self._exchange.ask(draft, drafted, self._words.head)
        return draft

    def look_out(self, text: Sequence[int], drafted: Drafted) -> Lookout | None:
        """Begin to draft for what may come of a draft under way below `text`; None where nobody could."""
        deepest = len(text) + max(drafted.tree.depths(), default=0) + 1  # where the next root may be
        plan = self.plans.ahead(deepest, self._transcript.limit_len - len(text) - 1)
        if self._drafting is None or plan is None or self._transcript.num_new_tokens == 0 or not self.has_room(text):
            return None
        wanted = PreDraftSpec(plan, self._pilot.outcomes, self._models.eos_token_ids)
        return self._words.look_out(text, drafted.tree, wanted, self._exchange.rows)

    def has_room(self, text: Sequence[int]) -> bool:
        """Whether the answer may go on after so long a text."""
        return len(text) < self._transcript.limit_len

    @property
    def num_in_flight(self) -> int:
        """Drafts to have under way at once."""
        choice = self._pilot.choice
        return self.config.in_flight if choice is None else choice.in_flight

    def is_under_way(self, draft: Draft) -> bool:
        """Whether its verdict is the next one."""
        return self._transcript.awaits(draft.seq)

    @property
    def text(self) -> tuple[int, ...]:
        """All tokens that stand."""
        return tuple(self._transcript.tokens)

    async def verify(self, drafted: Drafted) -> Verdict:
        """The target's verdict on the draft under the last token that stands."""
        self.send(drafted)
        return await self.next_verdict()

    async def verify_tail(self) -> Verdict:
        """The target's verdict on the first unverified tokens."""
        return await self.verify(Drafted(self._transcript.tail_chain(self.plans.max_nodes)))

    def ask_decode(self, tree: ServerTree | None = None, *, features: bool = False) -> None:
        """Let the server write the rest: the target alone, or with a drafter beside it that grows such trees; with the
        features of what it reads and writes, if asked for."""
        known = self._exchange.known_features if features and self._drafting is not None else None
        self._exchange.ask(self._transcript.next_decode(known, tree, None if known is None else self._pilot.codec))

    async def stop_decode(self) -> None:
        """Let the server write no more; what comes until it has stopped stands. Raises LinkError."""
        asked = self._transcript.awaited
        if isinstance(asked, Decode) and not self.finished:
            self._exchange.cancel(asked)
        while isinstance(self._transcript.awaited, Decode) and not self.finished:
            self.commit(await self.next_verdict())

    def decide(self) -> OnlineMode:
        """The mode to ride next, of those that this server and this drafter allow."""
        return self._pilot.decide(self.session.limits, self.session.rtt, self.plans.draft_nodes).mode

    def enters(self, mode: OnlineMode) -> None:
        """A loop begins."""
        self._mode = mode
        self._pilot.enters(mode)

    @property
    def goes_on(self) -> bool:
        """Whether the loop under way should: until the answer is finished, or another mode has become better."""
        return not self.finished and (not self.is_auto or self.decide() == self._mode)

    @property
    def is_auto(self) -> bool:
        return self.config.mode == "auto"

    @property
    def affords_features(self) -> bool:
        """Whether `auto` may have features come along with what the server writes."""
        return self.is_auto and self._pilot.affords_features

    @property
    def should_open(self) -> bool:
        """Whether the server should write alone while the prompt's features are on their way."""
        drafting, transcript = self._drafting, self._transcript
        if (
            not self.config.opening
            or drafting is None
            or not drafting.tap.fingerprint
            or drafting.tap.newest_only
            or transcript.num_new_tokens
        ):
            return False
        return self._pilot.should_open(transcript.prompt_len - drafting.num_features, self.session.rtt)

    @property
    def has_prompt_features(self) -> bool:
        return self._drafting is None or self._drafting.num_features >= self._transcript.prompt_len

    async def features_come_first(self) -> bool:
        """Whether, before the next verdict comes, the prompt's features are there, or will be by the time a server that
        writes alone has stopped. Raises LinkError."""
        await self._exchange.rows_or_verdict(self._can_hand_over, self.config.timeouts.verdict_s)
        return self._can_hand_over()

    async def next_verdict(self) -> Verdict:
        """On the oldest request under way. Raises LinkError."""
        self._judging, verdict = await self._exchange.next_verdict(self.config.timeouts.verdict_s)
        return verdict

    def commit(self, verdict: Verdict) -> None:
        """Let the verdict that came last stand."""
        asked, had_tail = self._judging, self._transcript.tail_len > 0
        assert asked is not None
        change = self._transcript.apply(verdict, self._models.vocab_size)
        self._speechless = False
        if not had_tail:
            self._judge(asked, verdict)
            is_last = change.finish is not None
            self._pilot.took_verdict(asked.request, verdict, stale=asked.stale, is_last=is_last)
        self._telling.tell(Cycle(asked.request, verdict))
        self._telling.changed(change, self._transcript.prompt_len, self._clock())
        self._telling.tell(Stats(self.statistics()))
        if change.finish is not None:
            self.finish(change.finish)

    async def take_foreseen(self, lookout: Lookout, outcome: Outcome) -> Drafted | None:
        """The draft that was made for what the verdict says, finished if it was under way; None without one."""
        started = self._clock()
        drafted = await lookout.draft_for(outcome)
        self._meter.drafted(self._clock() - started)
        self._pilot.took_lookout(lookout, outcome)
        if lookout.cost is not None:
            self._meter.levels_took(lookout.cost.seconds, lookout.cost.levels, ahead=True)
        if lookout.num_nodes:
            self._meter.foreseen(drafted is not None)
            self._meter.wasted(lookout.num_nodes - (0 if drafted is None else len(drafted.tree)))
        return drafted

    def drop(self, lookout: Lookout) -> None:
        """What is looked out for from there will not come about."""
        self._meter.wasted(lookout.num_nodes)
        lookout.cancel()

    async def warm_drafter(self) -> None:
        """Let the drafter read what the target wrote, so that it can take over at once."""
        if self._drafting is None:
            return
        tokens = tuple(self._transcript.tokens)
        self._pilot.took_text(tokens)
        if self._pilot.wants_trial and self.has_prompt_features:
            self._pilot.tries(len(tokens), (await self._grow()).tree)
        else:
            await self._drafting.follow(tokens)

    # -- without it ---------------------------------------------------------------------------------------------------

    @property
    def can_write_alone(self) -> bool:
        """Whether a drafter or the last resort is there and has something left to say."""
        return (
            self._words.any
            and self._transcript.room > 0
            and len(self._transcript.tokens) < self.plans.max_context
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
        self._telling.wrote(first, token, self._clock())

    @property
    def has_tail(self) -> bool:
        return self._transcript.tail_len > 0

    def keep_tail(self) -> None:
        """Let the unverified tokens stand, unverified as they are."""
        if not self.has_tail:
            return
        self._transcript.keep_tail()
        if self._ended or self._transcript.room <= 0 or len(self._transcript.tokens) >= self.plans.max_context:
            self.finish("unverified")

    @property
    def patience_s(self) -> float:
        """How long to wait for the link when the drafter is done; one attempt at least is seen to its end."""
        return max(self.config.wait_for_link_s, self.session.untried_s)

    @property
    def is_in_vain(self) -> bool:
        """Whether the link came back again and again, for as long as it may stay away, and nothing ever came of it."""
        return self.session.is_in_vain(self.config.wait_for_link_s)

    async def lose_link(self, error: Exception) -> None:
        self._meter.went_offline(self._clock())
        self._exchange.lost()
        await self.session.lose(str(error))

    def caught_up(self) -> None:
        """The server knows all that stands."""
        self.session.caught_up()
        self._meter.came_back(self._clock())

    # -- its end ------------------------------------------------------------------------------------------------------

    def finish(self, reason: FinishReason) -> None:
        self.finished = True
        self.session.caught_up()  # if it was coming back, it has: nothing is left to judge
        self._telling.finished(reason, self.statistics())

    def finish_alone(self) -> None:
        """There will be no link in time."""
        self.finish("unverified" if self._transcript.new_origins[-1:] == ("unverified",) else "link")

    def abandon(self) -> None:
        """The caller wants no more; the session stays usable."""
        asked = self._exchange.newest
        if isinstance(asked, Decode) and self.session.state is LinkState.ONLINE and not self.finished:
            self.session.link.send(Cancel(asked.seq))

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

    async def _take_features(self) -> None:
        """Wait for the features that have been asked for, as far as the next draft should not be made without: the
        prompt's, or the newest too."""
        assert self._drafting is not None
        if self._waits_for_features or self._drafting.num_features < self._transcript.prompt_len:
            await self._exchange.receive_rows(self.config.timeouts.features_s)

    def _can_hand_over(self) -> bool:
        if self._drafting is None or self.has_prompt_features:
            return True
        return self._pilot.come_soon(self._transcript.prompt_len - self._drafting.num_features, self.session.rtt)

    def _judge(self, asked: Asked, verdict: Verdict) -> None:
        if isinstance(asked.request, Decode):
            if asked.request.tree is not None and verdict.bonus is not None:
                num_nodes = min(asked.request.tree.budget, self.plans.draft_nodes)
                self._meter.judged(num_nodes, len(verdict.tokens))
        elif asked.drafted.tree.tokens and (warning := self._words.judge(asked.drafted, asked.head, verdict)):
            self._telling.tell(Warned(warning))

    @property
    def _waits_for_features(self) -> bool:
        chosen = self.config.wait_for_features
        return self._drafting is not None and (not self._drafting.stale_tolerant if chosen is None else chosen)

    @property
    def _ended(self) -> bool:
        """Whether the last token ends the answer."""
        return self._transcript.last_new_token in self._models.eos_token_ids
