"""Reports of `outrider-bench network` as a replay uses them: their cases, and some or all of the runs of each.

A report is named `FILE[,case=PROFILE][,runs=odd|even|N+N...]`; runs count from 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider_bench.core.stats import median
from outrider_bench.network.intervals import DecodedPrompts
from outrider_proto.errors import UsageError

_PARITIES = {"odd": 1, "even": 0}


@dataclass(frozen=True, slots=True)
class RealCase:
    """One case of a report, and the indices of the runs taken from it."""

    report: Path
    content: Mapping[str, Any]  # Any: a report's content
    runs: tuple[int, ...]

    @property
    def profile(self) -> str:
        return str(self.content["profile"])

    @property
    def label(self) -> str:
        """The profile, and the runs where they are not all."""
        return self.profile if self._has_all_runs else f"{self.profile} runs {'+'.join(str(n + 1) for n in self.runs)}"

    @property
    def run_ids(self) -> frozenset[str]:
        """A digest per run of what was measured in it, so that copies of a report are recognized."""
        return frozenset(_digest([way["runs"][number] for way in self.ways.values()]) for number in self.runs)

    @property
    def ways(self) -> Mapping[str, Mapping[str, Any]]:  # Any: as above
        return self.content["ways"]  # type: ignore[no-any-return] # read from JSON

    def metrics(self, way: str) -> Mapping[str, Any]:  # Any: numbers, and objects of numbers
        """Return the way's metrics; numbers are medians over the runs taken."""
        of_all = self.ways[way]
        if self._has_all_runs:
            return of_all
        runs = [of_all["runs"][number] for number in self.runs]
        return {name: median(run[name] for run in runs) for name, value in runs[0].items() if _is_number(value)}

    def decoding(self, way: str) -> DecodedPrompts | None:
        """Return what the way's answers took; None where the report lacks some of them."""
        rows = [row for row in self.content.get("answers", ()) if row["way"] == way]
        runs = [sorted((r for r in rows if r["run"] == n), key=lambda r: int(r["place"])) for n in self.runs]
        if not rows or any(len(run) != self.content["prompts"] for run in runs):
            return None
        tokens, ms = (
            np.array([[row[name] for row in run] for run in runs], dtype=float)
            for name in ("decoded_tokens", "decode_ms")
        )
        return DecodedPrompts(tokens, ms)

    @property
    def _has_all_runs(self) -> bool:
        return len(self.runs) == _num_runs(self.content)


def real_cases(named: Sequence[str]) -> list[RealCase]:
    """Read the reports. Raises UsageError for files that are none, and for cases or runs that they lack."""
    return [case for text in named for case in _cases(text)]


def _cases(text: str) -> list[RealCase]:
    name, *pairs = text.split(",")
    options = dict(_option(text, pair) for pair in pairs)
    report, profile, runs = Path(name), options.get("case"), options.get("runs")
    found = [content for content in _contents(report) if profile in (None, content["profile"])]
    if not found:
        raise UsageError(f"{text}: {report} has no case {profile}: name one of its profiles")
    return [RealCase(report, content, _runs(text, runs, _num_runs(content))) for content in found]


def _contents(report: Path) -> list[dict[str, Any]]:  # Any: a report's content
    try:
        cases = list(json.loads(report.read_text())["cases"])
        for case in cases:
            _num_runs(case), case["profile"]
    except OSError as error:
        raise UsageError(f"cannot read {report}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise UsageError(f"{report}: not a report of outrider-bench network ({error!r})") from error
    if not cases:
        raise UsageError(f"{report}: it has no cases")
    return cases


def _num_runs(content: Mapping[str, Any]) -> int:  # Any: as above
    return len(next(iter(content["ways"].values()))["runs"])


def _option(text: str, pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if name not in ("case", "runs") or not equals:
        raise UsageError(f"{text}: {pair!r}: need case=PROFILE or runs=odd, even or numbers joined by +")
    return name, value


def _runs(text: str, chosen: str | None, count: int) -> tuple[int, ...]:
    if chosen is None:
        return tuple(range(count))
    if chosen in _PARITIES:
        numbers = [number for number in range(1, count + 1) if number % 2 == _PARITIES[chosen]]
    else:
        numbers = [int(part) if part.isdecimal() else 0 for part in chosen.split("+")]
    if not numbers or not all(1 <= number <= count for number in numbers):
        raise UsageError(f"{text}: runs={chosen}: there are runs 1 to {count}: need odd, even or numbers joined by +")
    return tuple(sorted({number - 1 for number in numbers}))


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _digest(measured: object) -> str:
    return hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()
