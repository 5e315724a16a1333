"""Collects verdicts, drafts, pings and features of a client and summarizes them as `Measurements`.

Pure: `now` is in seconds of any one clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider_client.controller.acceptance import AcceptanceEstimator
from outrider_client.controller.measurements import Measurements, ModeLimits, OnlineMode
from outrider_client.controller.mode_history import ModeRun
from outrider_client.controller.smoothing import Mean, Median, UpperQuartile
from outrider_proto.frames import Verdict
from outrider_proto.tree import DraftTree

_HORIZON = 40  # verdicts
_ENOUGH_HITS = 16
_LEAST_BARE = 0.1  # share of a pass that its root takes at least
_STALL_S = 3.0  # a longer gap says nothing about the mode


class CycleObserver:
    """Measurements of one client. `limits` may be replaced, such as when another server answers.

    `declared`: what is known before any measurement, from the drafter's family or from a pace. `row_ms`: what a node
    adds to a pass, as far as it is known.
    """

    def __init__(self, limits: ModeLimits, declared: Measurements | None = None) -> None:
        self.limits = limits
        self.row_ms = 0.0
        self.num_tokens = 0  # tokens with a verdict
        self.active_s = 0.0  # time spent writing answers
        self._declared = declared or Measurements()
        self._mode: OnlineMode = "stream"
        self._last_at: float | None = None
        self._mode_run = ModeRun("stream")
        self._rtt_s: float | None = None
        self._jitter_s = 0.0
        self._verify_ms, self._server_level_ms, self._features_ms = Median(), Median(), Median()
        self._nodes = Median()  # of the drafts behind _verify_ms
        self._token_ms = Mean(_HORIZON)
        self._then: tuple[float, float, float] | None = None  # _passes when one-token passes were last timed
        self._level_ms: dict[int, Median] = {}
        self._acceptance = AcceptanceEstimator()
        self._hits: dict[int, Mean] = {}
        self._hit_levels, self._stale_share = Mean(_HORIZON), Mean(_HORIZON)
        self._down_bps = Median()
        self._reply_bps = UpperQuartile()  # upper: other delays of features make a link look slower than it is
        self._cycle_s, self._cycle_tokens = Mean(_HORIZON), Mean(_HORIZON)

    def began(self, mode: OnlineMode, now: float) -> None:
        """Begin an answer, go on after an outage, or change the mode: the next interval is not counted."""
        if mode != self._mode:
            self._mode_run = ModeRun(mode)
        self._mode = mode
        self._last_at = None

    def record_rtt(self, mean_s: float, spread_s: float) -> None:
        self._rtt_s, self._jitter_s = mean_s, spread_s

    def record_verdict(
        self, now: float, verdict: Verdict, tree: DraftTree | None = None, levels: int = 0, *, stale: bool = False
    ) -> None:
        """Record a verdict.

        `tree`: the client's draft. `levels`: of the server's own draft, or of the client's before it was cut at the
        answer's end. `stale`: the draft lacked the newest features.
        """
        # A stale verdict answers a draft that the server skipped: it says nothing of the target.
        if verdict.stale:
            return
        # The server does not draft below the first root of an answer.
        if not tree and not verdict.draft_us:
            levels = 0
        num_tokens = len(verdict.path) + len(verdict.tokens) + (verdict.bonus is not None)
        elapsed_s = self._elapsed(now)
        self._record_tokens(num_tokens, elapsed_s)
        if tree or levels:
            queue_us = 0 if self._mode == "pipelined" else verdict.queue_us  # pipelined drafts queue behind each other
            self._verify_ms.add((queue_us + verdict.verify_us) / 1e3)
            self._nodes.add(len(tree) if tree else levels)
            self._stale_share.add(stale)
        if tree:
            self.record_path(tree, verdict.path, levels)
            self._hit_levels.add(max(tree.depths()))
        elif levels:
            self._server_level_ms.add(verdict.draft_us / 1e3 / levels)
            self._acceptance.judged(levels, len(verdict.tokens))
        elif self._mode == "stream" and elapsed_s is not None:
            self._token_ms.add(elapsed_s * 1e3)
            self._then = self._passes
            self._acceptance.fade(elapsed_s)

    def record_path(self, tree: DraftTree, path: tuple[int, ...], levels: int = 0) -> None:
        """Record the accepted path of a tree or a trial draft. `levels`: that it would have had uncut."""
        self._acceptance.judged(max((*tree.depths(), levels)), len(path))

    def record_drafting(self, seconds: float, levels: int, outcomes: int = 1) -> None:
        """Record the time to grow `levels` levels of so many outcomes side by side."""
        if levels:
            self._level_ms.setdefault(outcomes, Median()).add(seconds * 1e3 / levels)

    def record_outcome(self, rank: int | None, outcomes: int, *, is_whole: bool = True) -> None:
        """Record the rank (from 0) of a verdict's outcome among those drafted ahead; None if it was not among them."""
        # If the verdict came before all drafts were made, it is known whether its outcome was among them, but not its
        # rank.
        if is_whole or outcomes == 1:
            self._hits.setdefault(1, Mean(_HORIZON)).add(rank == 0)
        if outcomes > 1:
            self._hits.setdefault(outcomes, Mean(_HORIZON)).add(rank is not None)

    def record_features(self, lag_s: float, num_bytes: int = 0) -> None:
        """Record that all features of a verdict, `num_bytes`, had arrived `lag_s` after it."""
        self._features_ms.add(lag_s * 1e3)
        if num_bytes and lag_s > 0:
            self._reply_bps.add(8 * num_bytes / lag_s)

    def record_transfer(self, num_bytes: int, seconds: float) -> None:
        """Record a long transfer downwards, such as a prompt's features."""
        if seconds > 0:
            self._down_bps.add(8 * num_bytes / seconds)

    def take_mode_run(self) -> ModeRun:
        """Return the cycles of the current mode since the last call."""
        mode_run, self._mode_run = self._mode_run, ModeRun(self._mode)
        return mode_run

    @property
    def num_judged(self) -> float:
        return self._acceptance.num_judged

    @property
    def tokens_per_second(self) -> float | None:
        """Speed over the last verdicts, in any mode."""
        return self._cycle_tokens.value / self._cycle_s.value if self._cycle_s.value else None

    @property
    def down_bps(self) -> float | None:
        """Rate downwards, measured on a prompt's features or else on replies."""
        return _known(self._down_bps.value, self._reply_bps.value)

    def measured(self) -> Measurements:
        single_ms = self._level_ms[1].value if 1 in self._level_ms else None
        return Measurements(
            limits=self.limits,
            rtt_ms=None if self._rtt_s is None else self._rtt_s * 1e3,
            jitter_ms=self._jitter_s * 1e3,
            verify_ms=self._verify_ms.value,
            stream_ms=self._stream_ms(),
            draft_level_ms=self._declared.draft_level_ms if single_ms is None else single_ms,
            server_level_ms=_known(self._server_level_ms.value, self._declared.server_level_ms),
            acceptance=self._acceptance.by_position,
            hit_rates={number: hit.value for number, hit in self._hits.items() if hit.count >= _ENOUGH_HITS},
            hit_levels=self._hit_levels.value if self._hit_levels.count else self.limits.shape.levels,
            batch_factors=self._batch_factors(single_ms),
            staleness_factor=self._declared.staleness_factor,
            stale_share=self._stale_share.value,
            features_ms=self._features_ms.value,
            down_bps=self.down_bps,
        )

    def _elapsed(self, now: float) -> float | None:
        """Return the time since the previous verdict; None if that says nothing."""
        last_at, self._last_at = self._last_at, now
        return now - last_at if last_at is not None and now - last_at < _STALL_S else None

    def _record_tokens(self, num_tokens: int, elapsed_s: float | None) -> None:
        self.num_tokens += num_tokens
        if elapsed_s is not None:
            self.active_s += elapsed_s
            self._mode_run = self._mode_run.plus(num_tokens, elapsed_s)
            self._cycle_s.add(elapsed_s)
            self._cycle_tokens.add(num_tokens)

    def _stream_ms(self) -> float | None:
        """Return the time between tokens as last timed, scaled by how passes over drafts have changed since.

        Not by how many nodes they have: those cost a pass of one token nothing.
        """
        if not self._token_ms.count:
            return None
        now, then = self._passes, self._then
        if self._mode == "stream" or now is None or then is None:
            return self._token_ms.value
        return self._token_ms.value * self._bare_ms(*now) / self._bare_ms(*then)

    @property
    def _passes(self) -> tuple[float, float, float] | None:
        """Time and nodes of recent passes over drafts, and what a node adds."""
        ms, nodes = self._verify_ms.value, self._nodes.value
        return (ms, nodes, self.row_ms) if ms and nodes is not None else None

    def _bare_ms(self, verify_ms: float, nodes: float, row_ms: float) -> float:
        return max(verify_ms - (row_ms or self.row_ms) * nodes, _LEAST_BARE * verify_ms)

    def _batch_factors(self, single_ms: float | None) -> Mapping[int, float]:
        factors = dict(self._declared.batch_factors)
        for number, level_ms in self._level_ms.items():
            if number > 1 and single_ms and level_ms.value:
                factors[number] = max(level_ms.value / single_ms, 1.0)
        return factors


def _known(measured: float | None, declared: float | None) -> float | None:
    return declared if measured is None else measured
