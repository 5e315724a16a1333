"""Use of the heads in one answer: which one drafted, at what cost, with what confidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider_drafters.routing.confidence import probabilities_of

if TYPE_CHECKING:
    from outrider_drafters.routing.routed_drafter import RoutedDraft
    from outrider_drafters.trees.grow import ScoredTree

TENTHS = 10


@dataclass(frozen=True, slots=True)
class AcceptedMeans:
    """Mean over accepted drafted tokens and mean over rejected ones; 0 without any."""

    accepted: float = 0.0
    rejected: float = 0.0


@dataclass(frozen=True, slots=True)
class HeadUse:
    """Statistics of the heads over one answer."""

    # The field names are keys of --json and of the gateway's responses: programs read them.
    drafts: int = 0  # trees that heads drafted, the routing report's head calls
    passes: int = 0  # forward passes, one for all heads of a batch
    drafts_per_1000_tokens: float = 0.0
    passes_per_1000_tokens: float = 0.0
    extra_drafts: float = 0.0  # trees beyond one per cycle, as a share: 1.0 is the report's +100 %
    gate_skips: int = 0
    cycles: Mapping[str, int] = field(default_factory=dict)  # drafts sent, by head
    shares: Mapping[str, float] = field(default_factory=dict)
    accepted_tokens: int = 0
    rejected_tokens: int = 0
    confidence: AcceptedMeans = AcceptedMeans()  # probability of a drafted token's path according to its head
    entropy: AcceptedMeans = AcceptedMeans()  # of the distribution it was drawn from, in nats; of several heads only
    drafted_by_confidence: tuple[int, ...] = (0,) * TENTHS  # tokens by tenths of that probability, from below 0.1 on
    accepted_by_confidence: tuple[int, ...] = (0,) * TENTHS  # those of them that were accepted


class HeadMeter:
    """Adds up drafts as they are made and verified."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = names
        self._cycles = [0] * len(names)
        self._drafts = self._passes = self._skips = 0
        self._confidence, self._entropy = _Sums(), _Sums()
        self._by_confidence = [0] * TENTHS, [0] * TENTHS  # drafted, accepted

    def drafted(self, routed: RoutedDraft) -> None:
        """Count the draft of a cycle."""
        if routed.num_drafts:
            self._cycles[routed.head] += 1
        self._drafts += routed.num_drafts
        self._passes += routed.num_passes
        self._skips += routed.skipped

    def judged(self, drafted: ScoredTree, path: Sequence[int]) -> None:
        """Count a verdict that accepted exactly the nodes on `path`."""
        accepted = set(path)
        for node, probability in enumerate(probabilities_of(drafted)):
            self._confidence.add(probability, node in accepted)
            # A path of likely tokens may come to 1, and by rounding to more.
            tenth = min(int(probability * TENTHS), TENTHS - 1)
            self._by_confidence[0][tenth] += 1
            self._by_confidence[1][tenth] += node in accepted
        for node, entropy in enumerate(drafted.entropies or ()):
            self._entropy.add(entropy, node in accepted)

    def snapshot(self, num_tokens: int) -> HeadUse:
        """Return the statistics over an answer with `num_tokens` verified tokens."""
        per_1000 = 1000 / max(num_tokens, 1)
        cycles = sum(self._cycles)
        return HeadUse(
            drafts=self._drafts,
            passes=self._passes,
            drafts_per_1000_tokens=self._drafts * per_1000,
            passes_per_1000_tokens=self._passes * per_1000,
            extra_drafts=self._drafts / cycles - 1 if cycles else 0.0,
            gate_skips=self._skips,
            cycles=dict(zip(self._names, self._cycles, strict=True)),
            shares={name: count / max(cycles, 1) for name, count in zip(self._names, self._cycles, strict=True)},
            accepted_tokens=self._confidence.counts[True],
            rejected_tokens=self._confidence.counts[False],
            confidence=self._confidence.means(),
            entropy=self._entropy.means(),
            drafted_by_confidence=tuple(self._by_confidence[0]),
            accepted_by_confidence=tuple(self._by_confidence[1]),
        )


class _Sums:
    def __init__(self) -> None:
        self.counts = [0, 0]  # rejected, accepted
        self._sums = [0.0, 0.0]

    def add(self, value: float, accepted: bool) -> None:
        self.counts[accepted] += 1
        self._sums[accepted] += value

    def means(self) -> AcceptedMeans:
        rejected, accepted = (total / max(count, 1) for total, count in zip(self._sums, self.counts, strict=True))
        return AcceptedMeans(accepted, rejected)
