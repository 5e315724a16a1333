"""Replays compared with cases of real reports: every row says whether its overhead was fitted on what judges it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outrider_bench.core.bootstrap import Interval
from outrider_bench.core.tables import ResultTable, plus_minus, table
from outrider_bench.network.intervals import DecodedPrompts
from outrider_bench.network.report import Scenario
from outrider_bench.virtual.overhead_fit import OverheadFit
from outrider_bench.virtual.real_report import RealCase
from outrider_proto.errors import UsageError

_FIGURES = ("tokens_per_second", "mean_acceptance_length", "rtt_ms", "ttft_ms", "target_calls", "hit_rate")
_SETTINGS = ("profile", "pace", "prompts", "max_new_tokens", "codec")
_SAMPLES = ("out of sample", "in sample")  # by whether it is in sample


@dataclass(frozen=True, slots=True)
class RealComparison:
    """Metrics of one variant over one profile, virtual and real.

    `judge` names the real case, `fitted_on` those of the overhead; `in_sample`: they share a run. `real_ci95` is
    the 95 % interval of the real speed over runs and prompts, `deviation_ci95` that of the deviation, for which virtual
    and real answers are paired prompt by prompt; None where the report has no answers.
    """

    profile: str
    way: str
    virtual: Mapping[str, float]
    real: Mapping[str, float]
    judge: str
    fitted_on: Sequence[str]
    in_sample: bool
    real_ci95: Interval | None = None
    deviation_ci95: Interval | None = None

    @property
    def deviation(self) -> float:
        """Deviation of the virtual speed, as a share of the real one."""
        return self.virtual["tokens_per_second"] / self.real["tokens_per_second"] - 1

    @property
    def is_inside(self) -> bool | None:
        """Whether the virtual speed lies in the real one's interval; None where that is unknown."""
        if self.real_ci95 is None:
            return None
        low, high = self.real_ci95
        return low <= self.virtual["tokens_per_second"] <= high

    def as_dict(self) -> dict[str, Any]:  # Any: a report's content
        computed = {"deviation": self.deviation, "inside": self.is_inside, "sample": _SAMPLES[self.in_sample]}
        return asdict(self) | computed


def compare_with_real(
    scenarios: Sequence[Scenario], fits: Mapping[str, OverheadFit], judges: Sequence[RealCase]
) -> list[RealComparison]:
    """Compare all variants that both have; `fits` are the overheads by profile.

    Raises UsageError where there are none, or a case has other settings.
    """
    found = []
    for judge in judges:
        for scenario in scenarios:
            if judge.profile == scenario.setting.profile:
                _check(scenario, judge)
                found += _compared(scenario, fits[judge.profile], judge)
    if not found:
        reports = ", ".join(sorted({str(judge.report) for judge in judges}))
        raise UsageError(f"{reports}: has none of the modes replayed over these profiles: name the same ones")
    return found


def comparison_table(found: Sequence[RealComparison]) -> ResultTable:
    """Build the table of speed and tau, virtual and real, out of sample first."""
    rows = [
        [
            one.judge,
            one.way,
            _SAMPLES[one.in_sample],
            ", ".join(one.fitted_on) or "nothing",
            _format(one.virtual, "tokens_per_second"),
            plus_minus(one.real["tokens_per_second"], one.real_ci95, 2),
            *(_format(side, "mean_acceptance_length") for side in (one.virtual, one.real)),
            _of_deviation(one),
            {None: "", True: "inside", False: "outside"}[one.is_inside],
        ]
        for one in sorted(found, key=lambda one: one.in_sample)
    ]
    columns = (
        "profile", "way", "sample", "fitted on", "tok/s", "real", "tau", "real", "tok/s off by", "real 95 %",
    )  # fmt: skip
    caption = "±: 95 % interval over runs and prompts; of the deviation, prompt by prompt"
    return table("virtual time beside the real stack", columns, rows, keys=2, caption=caption)


def summary_lines(found: Sequence[RealComparison]) -> list[str]:
    """Say the worst and the median deviation, out of sample and in sample apart."""
    return [
        _SAMPLES[in_sample] + ": " + _summary(some)
        for in_sample in (False, True)
        if (some := [one for one in found if one.in_sample is in_sample])
    ]


def summary(found: Sequence[RealComparison]) -> dict[str, dict[str, Any] | None]:  # Any: as above
    """Return the same as a report has it; None where there is no such row."""
    return {
        sample.replace(" ", "_"): _as_dict([one for one in found if one.in_sample is bool(in_sample)])
        for in_sample, sample in enumerate(_SAMPLES)
    }


def _compared(scenario: Scenario, fit: OverheadFit, judge: RealCase) -> list[RealComparison]:
    found = []
    for name in (variant.name for variant in scenario.variants if variant.name in judge.ways):
        real = judge.decoding(name)
        ratio = (
            None if real is None else DecodedPrompts.of([run.answers[name] for run in scenario.runs]).ratio_ci95(real)
        )
        found.append(
            RealComparison(
                scenario.setting.profile,
                name,
                _some(scenario.medians_of(name)),
                _some(judge.metrics(name)),
                judge.label,
                fit.labels,
                fit.has_seen(judge),
                None if real is None else real.speed_ci95,
                None if ratio is None else (ratio[0] - 1, ratio[1] - 1),
            )
        )
    return found


def _summary(some: Sequence[RealComparison]) -> str:
    worst = max(some, key=lambda one: abs(one.deviation))
    median = statistics.median(abs(one.deviation) for one in some)
    judged = [one for one in some if one.is_inside is not None]
    inside = f", {sum(bool(one.is_inside) for one in judged)} of {len(judged)} inside the real 95 %" if judged else ""
    text = f"worst {worst.deviation:+.1%} ({worst.way} over {worst.judge}), median {median:.1%} of {len(some)}"
    return text + inside


def _as_dict(some: Sequence[RealComparison]) -> dict[str, Any] | None:  # Any: as above
    if not some:
        return None
    deviations = [one.deviation for one in some]
    return {
        "rows": len(some),
        "worst": max(deviations, key=abs),
        "median": statistics.median(map(abs, deviations)),
        "inside": sum(bool(one.is_inside) for one in some),
        "with_interval": sum(one.is_inside is not None for one in some),
    }


def _check(scenario: Scenario, judge: RealCase) -> None:
    for name in _SETTINGS:
        real, here = judge.content[name], getattr(scenario.setting, name)
        if real != here:
            raise UsageError(f"{judge.report}: {name}={real}, here {here}: make them the same")


def _some(metrics: Mapping[str, Any]) -> dict[str, float]:  # Any: as above
    # Metrics that do not apply are null in a report.
    return {name: metrics[name] for name in _FIGURES if metrics[name] is not None}


def _format(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[name]:.2f}" if name in metrics else "-"


def _of_deviation(one: RealComparison) -> str:
    if one.deviation_ci95 is None:
        return f"{one.deviation:+.1%}"
    low, high = one.deviation_ci95
    return f"{one.deviation:+.1%} ±{max(high - one.deviation, one.deviation - low):.1%}"
