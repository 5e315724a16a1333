"""Replays compared with a report of `outrider-bench network`, and overhead read from one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from outrider_bench.core.tables import ResultTable, table
from outrider_bench.network.report import Scenario
from outrider_bench.network.variants import ModeVariant, Options
from outrider_bench.virtual.overhead import AHEAD, IN_TURN, STREAM, Overhead
from outrider_bench.virtual.replay import ReplaySetup, link_of, replay
from outrider_proto.errors import UsageError

TOLERANCE = 0.10
_SHOWN = ("tokens_per_second", "mean_acceptance_length")
_FIGURES = (*_SHOWN, "rtt_ms", "ttft_ms", "target_calls", "hit_rate")
_OVERHEAD_SETTINGS = ("pace", "codec", "max_new_tokens")
_SETTINGS = ("profile", "pace", "prompts", "max_new_tokens", "codec")


@dataclass(frozen=True, slots=True)
class RealComparison:
    """Metrics of one variant over one profile, virtual and real."""

    profile: str
    way: str
    virtual: Mapping[str, float]
    real: Mapping[str, float]

    @property
    def deviation(self) -> float:
        """Deviation of the virtual speed, as a share of the real one."""
        return self.virtual["tokens_per_second"] / self.real["tokens_per_second"] - 1


def compare_with_real(scenarios: Sequence[Scenario], report: Path) -> list[RealComparison]:
    """Compare all variants that both have.

    Raises UsageError for a report with none, or with other settings.
    """
    found = []
    for real in real_cases(report):
        for scenario in scenarios:
            if real["profile"] == scenario.setting.profile:
                _check(scenario, real, report)
                found += [
                    RealComparison(
                        scenario.setting.profile,
                        variant.name,
                        _some(scenario.medians_of(variant.name)),
                        _some(real["ways"][variant.name]),
                    )
                    for variant in scenario.variants
                    if variant.name in real["ways"]
                ]
    if not found:
        raise UsageError(f"{report}: has none of the modes replayed over these profiles: name the same ones")
    return found


def real_comparison_table(found: Sequence[RealComparison]) -> ResultTable:
    """Build the table of speed and tau, virtual and real."""
    rows = [
        [
            one.profile,
            one.way,
            *(_format(side, name) for name in _SHOWN for side in (one.virtual, one.real)),
            f"{one.deviation:+.1%}",
        ]
        for one in found
    ]
    columns = ("profile", "way", "tok/s", "real", "tau", "real", "tok/s off by")
    return table("virtual time beside the real stack", columns, rows, keys=2)


def measured_overhead(report: Path, setup: ReplaySetup, common: Options, seed: int) -> Overhead:
    """Read the overhead from the report's first scenario.

    `common` are the replay's options for all variants. Raises UsageError for settings that differ from `setup`, or
    missing variants.
    """
    scenario = real_cases(report)[0]
    _check_overhead(scenario, setup, report)
    names = {mode: _first_of(mode, scenario["ways"]) for mode in (STREAM, IN_TURN, AHEAD)}
    variants = [ModeVariant.parse(name, common) for name in names.values() if name is not None]
    bare = replay(replace(setup, profile=link_of(scenario["profile"]), overhead=Overhead()), variants, seed).metrics
    known = {mode: name for mode, name in names.items() if name is not None}
    return Overhead.between(
        {mode: scenario["ways"][name] for mode, name in known.items()},
        {mode: asdict(bare[name]) for mode, name in known.items()},
    )


def real_cases(report: Path) -> list[dict[str, Any]]:  # Any: a report's content
    """Return the scenarios of a report, at least one. Raises UsageError."""
    try:
        scenarios = json.loads(report.read_text())["cases"]
    except OSError as error:
        raise UsageError(f"cannot read {report}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{report}: not a report of outrider-bench network ({error!r})") from error
    if not scenarios:
        raise UsageError(f"{report}: it has no scenarios")
    return list(scenarios)


def _check(scenario: Scenario, real: Mapping[str, Any], report: Path) -> None:
    for name in _SETTINGS:
        if real[name] != getattr(scenario.setting, name):
            raise UsageError(
                f"{report}: {name}={real[name]}, here {getattr(scenario.setting, name)}: make them the same"
            )


def _some(metrics: Mapping[str, Any]) -> dict[str, float]:
    # Metrics that do not apply are null in a report.
    return {name: metrics[name] for name in _FIGURES if metrics[name] is not None}


def _format(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[name]:.2f}" if name in metrics else "-"


def _first_of(mode: str, ways: Mapping[str, Any]) -> str | None:  # Any: a report's content
    return next((name for name in ways if name.partition(",")[0] == mode), None)


def _check_overhead(scenario: Mapping[str, Any], setup: ReplaySetup, report: Path) -> None:  # Any: as above
    here = {"pace": setup.pace.name, "codec": setup.codec, "max_new_tokens": setup.max_new_tokens}
    for name in _OVERHEAD_SETTINGS:
        if scenario[name] != here[name]:
            raise UsageError(f"{report}: {name}={scenario[name]}, here {here[name]}: make them the same")
