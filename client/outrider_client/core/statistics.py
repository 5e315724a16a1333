"""Statistics of an answer. Pure: times are arguments, in seconds of one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider_client.core.head_statistics import HeadMeter, HeadUse
from outrider_proto.frames import Verdict


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Time per verified token by cause, in ms."""

    draft: float = 0.0  # the drafter
    wire: float = 0.0  # transmission both ways
    queue: float = 0.0  # the server's
    verify: float = 0.0  # the target's pass
    wait: float = 0.0  # for features
    tap: float = 0.0  # the tap's pass, which overlaps with the verdict's transmission and `wait`


@dataclass(frozen=True, slots=True)
class Statistics:
    """Measures of one answer."""

    # The field names are keys of --json and of the gateway's responses: programs read them.
    new_tokens: int = 0
    mean_acceptance_length: float = 0.0
    draft_acceptance_rate: float = 0.0
    acceptance_histogram: tuple[int, ...] = ()  # entry k: verdicts that accepted k drafted tokens
    time_to_first_token_ms: float = 0.0
    mean_itl_ms: float = 0.0
    tokens_per_second: float = 0.0
    split_ms: TimeSplit = TimeSplit()
    bytes_up: int = 0
    bytes_down: int = 0
    target_calls: int = 0
    tree_budget: int = 0  # nodes: smallest limit that a busy server asked for; 0: it asked for none
    verify_ms: float = 0.0  # mean time of a target call
    forecasts: int = 0  # verdicts before which drafts had been made for some of their outcomes
    hit_rate: float = 0.0  # share of these whose outcome was among them
    wasted_nodes: int = 0  # drafted ahead and then not sent, or sent for nothing
    stale_drafts: int = 0  # sent ahead for nothing
    stale_tokens: float = 0.0  # mean number of tokens whose features were missing when a draft began
    level_ms: float = 0.0  # mean time of a level of a draft that was waited for
    ahead_level_ms: float = 0.0  # and of a level of drafts ahead, all outcomes together
    exchange_ms: float = 0.0  # mean transmission time of a draft and its verdict
    rtt_ms: float = 0.0
    outages: int = 0
    offline_ms: float = 0.0
    unverified: int = 0
    rolled_back: int = 0
    copied: int = 0  # unverified tokens that the fallback drafter wrote
    heads: HeadUse = field(default_factory=HeadUse)


@dataclass(slots=True)
class MeanTime:
    """Mean of times in seconds."""

    total_s: float = 0.0
    count: int = 0

    def take(self, seconds: float, count: int = 1) -> None:
        self.total_s += seconds
        self.count += count

    @property
    def ms(self) -> float:
        return self.total_s * 1e3 / max(self.count, 1)


class Meter:
    """Measures one answer from `started` on. Its public numbers are added to by whoever sees what they count."""

    def __init__(self, started: float, heads: Sequence[str] = ()) -> None:
        self.heads = HeadMeter(heads)
        self.draft_s = self.wait_s = self.tap_s = 0.0
        self.level, self.ahead_level = MeanTime(), MeanTime()  # of drafts waited for; of drafts ahead, all outcomes
        self.wasted_nodes = 0  # drafted ahead for nothing
        self.stale_drafts = 0  # sent ahead, and skipped by the server
        self.forecasts = self.hits = 0  # verdicts for whose outcomes drafts had been made; whose own was among them
        self.rolled_back = self.copied = 0  # tokens; copied by the fallback drafter
        self._started = started
        self._first_token_at: float | None = None
        self._last_token_at = started
        self._num_draft_tokens = 0
        self._histogram: list[int] = []
        self._wire_s = self._queue_s = self._verify_s = 0.0
        self._target_calls = 0
        self._tree_budget = 0
        self._drafts_begun = self._stale_tokens = 0
        self._requests = MeanTime()
        self._outages = 0
        self._offline_s = 0.0
        self._offline_since: float | None = None

    def tokens_arrived(self, now: float) -> None:
        if self._first_token_at is None:
            self._first_token_at = now
        self._last_token_at = now

    def verdict(self, verdict: Verdict, round_trip_s: float, *, on_draft: bool = False) -> None:
        """Count a verdict that arrived `round_trip_s` after its request; `on_draft`: on a tree of the drafter."""
        queue_s, verify_s = verdict.queue_us / 1e6, verdict.verify_us / 1e6
        wire_s = max(round_trip_s - queue_s - verify_s - verdict.draft_us / 1e6, 0.0)
        self._target_calls += 1
        if verdict.tree_budget:
            self._tree_budget = min(self._tree_budget or verdict.tree_budget, verdict.tree_budget)
        self._queue_s += queue_s
        self._verify_s += verify_s
        self._wire_s += wire_s
        if on_draft:
            self._requests.take(wire_s)

    def judged(self, num_nodes: int, num_accepted: int) -> None:
        """Count the verdict on a non-empty draft tree. Checks of unverified tokens do not count as drafts."""
        self._num_draft_tokens += num_nodes
        self._histogram += [0] * (num_accepted + 1 - len(self._histogram))
        self._histogram[num_accepted] += 1

    def drafted_stale(self, num_tokens: int) -> None:
        """Count a draft that begins without the features of so many tokens before its root."""
        self._drafts_begun += 1
        self._stale_tokens += max(num_tokens, 0)

    def went_offline(self, now: float) -> None:
        if self._offline_since is None:
            self._outages += 1
            self._offline_since = now

    def came_back(self, now: float) -> None:
        if self._offline_since is not None:
            self._offline_s += now - self._offline_since
            self._offline_since = None

    def snapshot(
        self, now: float, *, new_tokens: int, unverified: int, bytes_up: int, bytes_down: int, rtt_s: float
    ) -> Statistics:
        first_at = now if self._first_token_at is None else self._first_token_at
        accepted = sum(depth * count for depth, count in enumerate(self._histogram))
        num_drafts, num_calls = sum(self._histogram), max(self._target_calls, 1)
        offline_s = self._offline_s + (0.0 if self._offline_since is None else now - self._offline_since)
        scale = 1e3 / max(new_tokens - unverified, 1)
        seconds = (self.draft_s, self._wire_s, self._queue_s, self._verify_s, self.wait_s, self.tap_s)
        return Statistics(
            new_tokens=new_tokens,
            mean_acceptance_length=1 + accepted / num_drafts if num_drafts else 0.0,
            draft_acceptance_rate=accepted / self._num_draft_tokens if self._num_draft_tokens else 0.0,
            acceptance_histogram=tuple(self._histogram),
            time_to_first_token_ms=(first_at - self._started) * 1e3,
            mean_itl_ms=(self._last_token_at - first_at) * 1e3 / max(new_tokens - 1, 1),
            tokens_per_second=new_tokens / max(self._last_token_at - self._started, 1e-9),
            split_ms=TimeSplit(*(part * scale for part in seconds)),
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            target_calls=self._target_calls,
            tree_budget=self._tree_budget,
            verify_ms=self._verify_s * 1e3 / num_calls,
            forecasts=self.forecasts,
            hit_rate=self.hits / max(self.forecasts, 1),
            wasted_nodes=self.wasted_nodes,
            stale_drafts=self.stale_drafts,
            stale_tokens=self._stale_tokens / max(self._drafts_begun, 1),
            level_ms=self.level.ms,
            ahead_level_ms=self.ahead_level.ms,
            exchange_ms=self._requests.ms,
            rtt_ms=rtt_s * 1e3,
            outages=self._outages,
            offline_ms=offline_s * 1e3,
            unverified=unverified,
            rolled_back=self.rolled_back,
            copied=self.copied,
            heads=self.heads.snapshot(new_tokens - unverified),
        )
