"""A replay beside the real stack: the same ways on the same profile, in a report of `outrider-bench network`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from outrider_bench.core.tables import table
from outrider_bench.network.report import Case
from outrider_proto.errors import UsageError

TOLERANCE = 0.10
_SHOWN = ("tokens_per_second", "mean_acceptance_length")
_FIGURES = (*_SHOWN, "rtt_ms", "ttft_ms", "target_calls", "hit_rate")
_SETTINGS = ("profile", "pace", "prompts", "max_new_tokens", "codec")


@dataclass(frozen=True, slots=True)
class Pairing:
    """One way over one profile: its figures here and there."""

    profile: str
    way: str
    virtual: Mapping[str, float]
    real: Mapping[str, float]

    @property
    def deviation(self) -> float:
        """Of the virtual speed, as a share of the real one."""
        return self.virtual["tokens_per_second"] / self.real["tokens_per_second"] - 1


def pairings(cases: Sequence[Case], report: Path) -> list[Pairing]:
    """All ways that both have. Raises UsageError for a report with none, or of other conditions."""
    found = []
    for real in real_cases(report):
        for case in cases:
            if real["profile"] == case.setting.profile:
                _check(case, real, report)
                found += [
                    Pairing(case.setting.profile, way.name, _some(case.of_way(way.name)), _some(real["ways"][way.name]))
                    for way in case.ways
                    if way.name in real["ways"]
                ]
    if not found:
        raise UsageError(f"{report}: has none of the ways replayed over these profiles: name the same ones")
    return found


def pairings_table(found: Sequence[Pairing]) -> Table:
    """Speed and tau, here and there."""
    rows = [
        [
            one.profile,
            one.way,
            *(_told(side, name) for name in _SHOWN for side in (one.virtual, one.real)),
            f"{one.deviation:+.1%}",
        ]
        for one in found
    ]
    columns = ("profile", "way", "tok/s", "real", "tau", "real", "tok/s off by")
    return table("virtual time beside the real stack", columns, rows)


def real_cases(report: Path) -> list[dict[str, Any]]:  # Any: a report's content
    """At least one. Raises UsageError."""
    try:
        cases = json.loads(report.read_text())["cases"]
    except OSError as error:
        raise UsageError(f"cannot read {report}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{report}: no report of outrider-bench network ({error!r})") from error
    if not cases:
        raise UsageError(f"{report}: no case was measured")
    return list(cases)


def _check(case: Case, real: Mapping[str, Any], report: Path) -> None:
    for name in _SETTINGS:
        if real[name] != getattr(case.setting, name):
            raise UsageError(f"{report}: {name}={real[name]}, here {getattr(case.setting, name)}: make them the same")


def _some(figures: Mapping[str, Any]) -> dict[str, float]:
    return {name: figures[name] for name in _FIGURES if figures[name] is not None}


def _told(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[name]:.2f}" if name in figures else "-"
