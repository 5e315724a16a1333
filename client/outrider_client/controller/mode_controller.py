"""Binds measurements and mode selection to the answers of a client: records what happens, and with `auto` chooses."""

from __future__ import annotations

import logging
from collections.abc import Callable

from outrider_client.connection.heartbeat import RttEstimator
from outrider_client.controller.acceptance import accepted_path
from outrider_client.controller.codec_choice import FINEST, SIZE_VS_FINEST, codec_for, feature_share
from outrider_client.controller.decision import ModeSelector
from outrider_client.controller.measurements import AHEAD, Choice, Measurements, ModeLimits, OnlineMode
from outrider_client.controller.observer import CycleObserver
from outrider_client.controller.smoothing import Median
from outrider_client.core.config import AUTO_LIMITS, ClientConfig
from outrider_client.drafting.drafting_thread import AheadDraft, AsyncDrafter
from outrider_drafters.contracts.tree_shape import TreePlan, TreeShape
from outrider_drafters.emulation.pace import Pace
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import TreeOutcome
from outrider_drafters.trees.tree_tuner import TreeTuner
from outrider_proto.feature_codec import MANY_ROWS as MAX_REPLY_ROWS
from outrider_proto.frames import Codec, Decode, Draft, Opened, Verdict
from outrider_proto.tree import MAX_NODES, DraftTree

_log = logging.getLogger(__name__)
_OUTCOMES = (8, 4, 2, 1)
_CHEAP = 1.3  # times one outcome's time: what a batch of several may take to be cheap
MANY_ROWS = 32  # rows of features: as many are a prompt's, and the link's rate counts more than its delay
_ROOM = 4  # times the rate that features need
_TRIAL_EVERY = 32  # tokens that the server decodes
_FIRST_TRIALS_EVERY = 8  # while fewer drafts than _FEW are remembered
_FEW = 12
_TOLERANT, _INTOLERANT = 0.98, 0.8  # of tau, one verdict late: docs/features.md


class ModeController:
    """Records measurements of one client and chooses its modes, over all its answers. `clock` returns seconds."""

    def __init__(self, drafting: AsyncDrafter | None, pace: Pace | None, clock: Callable[[], float]) -> None:
        self.active_mode: OnlineMode | None = None
        self._drafting = drafting
        self._clock = clock
        self._observer = CycleObserver(ModeLimits(), _declared(drafting, pace))
        self._selector = ModeSelector(self._observer)
        self._config = ClientConfig()
        self._own_plan: TreePlan | None = None
        self.choice: Choice | None = None  # the current one; None if the caller fixed the mode
        self._levels_per_pass = 1 if drafting is None else drafting.levels_per_pass
        self._tuner = TreeTuner(levels_per_pass=self._levels_per_pass)
        self._row_s: float | None = None  # time that a row of a prompt's features takes downwards
        self._row_bytes = 0.0  # and its size
        self._reply_row_bytes = Median()  # converted to the finest codec
        self._codec: Codec = FINEST  # chosen last
        self._trial: tuple[int, DraftTree] | None = None  # text length and tree of a trial draft
        self._tried_at = 0  # number of tokens, over all answers
        self._num_answers = 0

    def begin(self, config: ClientConfig, own_plan: TreePlan | None) -> None:
        """Begin another answer; `own_plan`: the trees that its drafter was made for."""
        self._config, self._own_plan = config, own_plan
        self.choice = self._trial = None
        self._num_answers += 1

    def enter_mode(self, mode: OnlineMode) -> None:
        self.active_mode = mode
        self._observer.began(mode, self._clock())
        self._trial = None

    def decide(self, opened: Opened | None, rtt: RttEstimator, max_nodes: int = MAX_NODES) -> Choice:
        """Return the choice for the next cycle, with trees of at most `max_nodes` nodes."""
        if rtt.mean_s is not None:
            self._observer.record_rtt(rtt.mean_s, rtt.spread_s)
        self._observer.limits = self._limits(opened, max_nodes)
        choice = self._selector.decide()
        if self.choice is None or self.choice.mode != choice.mode:
            _log.info("mode %s: %s", choice.mode, choice.why)
        self.choice = choice
        observed = self._observer
        share = feature_share(self._reply_row_bytes.value, observed.tokens_per_second, observed.down_bps)
        if (codec := codec_for(share, self._codec)) != self._codec:
            _log.info("features in %s: in %s they would take %.2f of the link", codec, FINEST, share)
        self._codec = codec
        return choice

    @property
    def codec(self) -> Codec | None:
        """Codec of the next request's features, if the caller chose none; None means the session's."""
        if self.choice is None or self._config.codec != FINEST or self._codec == FINEST:
            return None
        return self._codec

    @property
    def outcomes(self) -> int:
        """Outcomes of a draft to draft for: as configured or chosen, or as many as cost little together."""
        if self._config.outcomes is not None:
            return self._config.outcomes
        if self.choice is not None:
            return self.choice.outcomes
        factors = self._observer.measured().batch_factors
        return next(count for count in _OUTCOMES if count == 1 or factors.get(count, 1.0) <= _CHEAP)

    def record_verdict(self, request: Draft | Decode, verdict: Verdict, *, stale: bool, is_last: bool = False) -> None:
        """Record a verdict. `stale`: its draft lacked the newest features; `is_last`: the answer ends with it."""
        now = self._clock()
        if isinstance(request, Draft):
            # The last draft of an answer is cut at the limit: count it with the levels that it would have had.
            cut = 0 if self.choice is None or not is_last else min(self.choice.levels, self.choice.ahead_levels)
            self._observer.record_verdict(now, verdict, request.tree or None, cut, stale=stale)
        else:
            tree = request.tree  # of the server's own draft: its levels as asked for, or as the server chose
            levels = 0 if tree is None else verdict.draft_levels if tree.auto else tree.levels
            self._observer.record_verdict(now, verdict, levels=levels)

    def record_tree(self, drafted: ScoredTree, verdict: Verdict) -> None:
        """Record the verdict on a tree with its drafter's probabilities."""
        if not verdict.stale:
            self._tuner.row_cost.record_pass(1 + len(drafted.tree), verdict.verify_us / 1e3)
            self._observer.row_ms = self._tuner.row_cost.row_ms or 0.0
            self._tuner.record_tree(drafted, verdict.path)

    def tuned(self, limits: TreePlan | None, *, ahead: bool = False) -> TreeShape:
        """Return the tree that is worth its cost, within `limits`. `ahead`: it is drafted in hidden time."""
        speed = self._observer.tokens_per_second
        measured = self._observer.measured()
        level_ms = 0.0 if ahead else measured.draft_level_ms
        if level_ms is not None:  # of all levels: a block's pass has given several
            level_ms *= min(self._levels_per_pass, measured.hit_levels)
        shape = limits if isinstance(limits, TreeShape) else AUTO_LIMITS
        return self._tuner.shape(shape, None if speed is None else speed / 1e3, level_ms)

    def record_drafting(self, seconds: float, num_passes: int) -> None:
        self._observer.record_drafting(seconds, num_passes)

    def record_ahead_draft(self, ahead_draft: AheadDraft, outcome: TreeOutcome) -> None:
        """Record the verdict on a draft for whose outcomes drafts were made ahead."""
        if ahead_draft.cost is not None:
            self._observer.record_drafting(ahead_draft.cost.seconds, ahead_draft.cost.levels, ahead_draft.cost.outcomes)
            self._observer.record_outcome(
                ahead_draft.rank_of(outcome), ahead_draft.cost.outcomes, is_whole=ahead_draft.is_whole
            )

    def record_features(self, lag_s: float, num_rows: int, num_bytes: int) -> None:
        """Record that all rows of a request had arrived `lag_s` after its first verdict."""
        if num_rows < MANY_ROWS:
            self._observer.record_features(lag_s, num_bytes)
            # After a change of codec, the one assumed here is the newest request's and wrong for a reply or two; the
            # median ignores these.
            codec = self.codec or self._config.codec
            if codec in SIZE_VS_FINEST and 0 < num_rows <= MAX_REPLY_ROWS:
                self._reply_row_bytes.add(num_bytes / num_rows / SIZE_VS_FINEST[codec])
            return
        self._row_s, self._row_bytes = lag_s / num_rows, num_bytes / num_rows
        self._observer.record_transfer(num_bytes, lag_s)

    @property
    def affords_features(self) -> bool:
        """Return whether the link has room for features beside the server's decoding: tokens must not wait for them."""
        # While nothing is known of the link they are sent from the second answer on: else it would never be measured.
        measured = self._observer.measured()
        row_bytes = self._reply_row_bytes.value if self._row_s is None else self._row_bytes
        if row_bytes is None or measured.down_bps is None or measured.stream_ms is None:
            return self._num_answers > 1
        return _ROOM * 8e3 * row_bytes / max(measured.stream_ms, 1e-3) < measured.down_bps

    def should_decode_first(self, num_rows: int, rtt: RttEstimator) -> bool:
        """Return whether a prompt's features take longer than a round trip, so that the server should decode first."""
        return num_rows >= MANY_ROWS and not self.arrive_within_rtt(num_rows, rtt)

    def arrive_within_rtt(self, num_rows: int, rtt: RttEstimator) -> bool:
        """Return whether so many more rows of a prompt's features are known to arrive within a round trip."""
        return self._row_s is not None and rtt.mean_s is not None and num_rows * self._row_s <= rtt.mean_s

    @property
    def wants_trial(self) -> bool:
        """Return whether to make a trial draft now, to learn what drafting would bring: once in so many tokens."""
        if self.choice is None or self._trial is not None:
            return False
        every = _FIRST_TRIALS_EVERY if self._observer.num_judged < _FEW else _TRIAL_EVERY
        return self._observer.num_tokens - self._tried_at >= every

    def record_trial(self, num_tokens: int, tree: DraftTree) -> None:
        """Record a trial draft, made when the text had `num_tokens` tokens."""
        self._tried_at = self._observer.num_tokens
        self._trial = (num_tokens, tree) if tree.tokens else None

    def record_text(self, tokens: tuple[int, ...]) -> None:
        """Compare the trial draft with the text so far, once the text is long enough."""
        if self._trial is None:
            return
        length, tree = self._trial
        written = tokens[length:]
        path = accepted_path(tree, written)
        if len(path) < len(written) or len(written) >= max(tree.depths()):
            self._observer.record_path(tree, path)
            self._trial = None

    def _limits(self, opened: Opened | None, max_nodes: int) -> ModeLimits:
        config = self._config
        plan = config.shape or self._own_plan or TreeShape()
        shape = plan if isinstance(plan, TreeShape) else TreeShape(levels=plan.levels, budget=len(plan.paths))
        row_bytes = (self._reply_row_bytes.value or 0.0) * SIZE_VS_FINEST.get(self.codec or config.codec, 1.0)
        return ModeLimits(
            modes=frozenset(self._modes(opened)),
            shape=shape,
            fixed=config.shape is not None or (self._own_plan is not None and config.tree != "auto"),
            in_flight=config.in_flight,
            outcomes=config.outcomes,
            wait_for_features=config.wait_for_features,
            bytes_per_token=row_bytes,
            max_nodes=max_nodes,
        )

    def _modes(self, opened: Opened | None) -> list[OnlineMode]:
        modes: list[OnlineMode] = ["stream"]
        if self._drafting is not None:
            modes.append("stop-and-wait")
            if self._drafting.can_draft_ahead:
                modes += AHEAD
            if opened is not None and opened.server_draft:
                modes.append("server-draft")
        return modes


def _declared(drafting: AsyncDrafter | None, pace: Pace | None) -> Measurements:
    tolerant = drafting is None or drafting.stale_tolerant
    factor = _TOLERANT if tolerant else _INTOLERANT
    if pace is None:
        return Measurements(staleness_factor=factor)
    return Measurements(
        staleness_factor=factor,
        draft_level_ms=pace.draft_level_ms,
        server_level_ms=pace.server_level_ms,
        batch_factors=pace.batch_factors,
    )
