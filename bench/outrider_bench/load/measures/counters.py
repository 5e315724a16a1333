"""Counters of one client, and their JSON form for the trip between processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from outrider_bench.load.measures.histogram import Histogram

_MAX_EXAMPLES = 5


@dataclass(slots=True)
class ClientCounters:
    """The counters of one client.

    `wrong`: answers that differ from the target's own, with examples; `strays`: duplicate or unexpected verdicts;
    `lost`: drafts whose verdict was still missing on a live connection when their answer was done.
    """

    client: int
    verdict_s: Histogram = field(default_factory=Histogram)  # on a draft
    first_verdict_s: Histogram = field(default_factory=Histogram)  # on a prompt
    queue_s: Histogram = field(default_factory=Histogram)
    verify_s: Histogram = field(default_factory=Histogram)
    request_s: Histogram = field(default_factory=Histogram)
    first_token_s: Histogram = field(default_factory=Histogram)
    verdicts: int = 0
    tokens: int = 0
    drafts: int = 0
    accepted: int = 0
    nodes: int = 0
    answers: int = 0  # whole ones, in the window
    checked: int = 0  # all that were compared, from the start
    sessions: int = 0
    outages: int = 0
    unverified: int = 0
    rolled_back: int = 0
    strays: int = 0
    lost: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def differs(self, text: str, got: tuple[int, ...], expected: tuple[int, ...], history: str = "") -> None:
        """Count a wrong answer; `story` describes what happened to it."""
        self.wrong += 1
        if len(self.examples) < _MAX_EXAMPLES:
            place = next((i for i, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1]), None)
            where = f"{len(got)} tokens of {len(expected)}" if place is None else f"token {place}"
            around = slice(max(0, (place or 0) - 2), (place or 0) + 4)
            these = f"{list(got[around])} for {list(expected[around])}"
            self.examples.append(
                f"client {self.client}, {text}: differs at {where}, {these}; {history}".removesuffix("; ")
            )

    @property
    def mean_acceptance_length(self) -> float:
        return 1 + self.accepted / self.drafts if self.drafts else 0.0

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        # Not asdict(), which would copy the histograms instead of calling their to_json().
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value.to_json() if isinstance(value, Histogram) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:  # Any: JSON
        histograms = {name: Histogram.from_json(value) for name, value in found.items() if name.endswith("_s")}
        return cls(**{**found, **histograms, "errors": Counter(found["errors"])})
