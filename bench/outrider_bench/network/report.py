"""Reports of scenarios: medians over the runs with their intervals, the controls, and the settings.

Scenario         all answers of one setting, from which the figures are computed
ReportedCase     the figures alone, as JSON has them, from which tables and plots are made
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from outrider_bench.core.bootstrap import Interval
from outrider_bench.core.prompts import TEXT_GROUPS
from outrider_bench.core.stats import median
from outrider_bench.network.intervals import IDEAL_STREAM, Intervals, scenario_intervals
from outrider_bench.network.link_endpoint import NO_LINK
from outrider_bench.network.metrics import LATER_TOKEN, Metric, medians
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.variants import CONTROLS, STREAM, ModeVariant

PACED = (
    "paced: every pass of target and drafter lasts as long as on the named hardware, and features have the size "
    "that they would have; gRPC, link, codec and acceptance are real"
)
Figures = Mapping[str, Any]  # Any: numbers, objects of numbers, and under NAME_ci95 the interval of NAME


@dataclass(frozen=True, slots=True)
class ScenarioSetting:
    """Conditions of a scenario; `round_trip_ms` is the nominal round trip of the profile."""

    profile: str
    engine: str
    why: str
    round_trip_ms: float
    drafter: str
    codec: str
    pace: str | None
    hardware: Mapping[str, object] | None  # that the pace names
    families: Sequence[str]
    prompts: int
    max_new_tokens: int
    seed: int
    tree: Mapping[str, object]
    prompt_tokens: int = 0  # at least; 0: as the questions are
    cores_apart: bool = False  # client and link on one core, the server on another
    questions: str | None = None  # the user's file; None: the corpus

    @property
    def tree_text(self) -> str:
        """The trees' limits, but for those that rule out nothing."""
        without_effect = {("certainty", 1.0), ("levels_per_pass", 1)}
        return ", ".join(
            f"{name} {value}" for name, value in self.tree.items() if value and (name, value) not in without_effect
        )


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Figures on easy or on hard text of the corpus alone."""

    families: Sequence[str]
    prompts: int
    ideal_stream: Figures
    ways: Mapping[str, Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCase(ScenarioSetting):
    """A scenario's figures; `ways` has those of each variant, the controls first, and of each run.

    `asked` counts a run's prompts by family, `answers` has a row per answer.
    """

    runs: int
    mismatches: int
    ideal_stream: Figures
    missing: Mapping[str, str]
    ways: Mapping[str, Figures]
    text: Mapping[str, TextGroup]
    round_trip: Figures
    round_trips: Sequence[Figures]
    asked: Mapping[str, int]
    answers: Sequence[Figures]

    @property
    def name(self) -> str:
        link = "no link" if self.profile == NO_LINK else self.profile
        return f"{self.drafter} over {link}, seed {self.seed}"

    @property
    def extent(self) -> str:
        """What the figures are taken from, in words."""
        runs = "one run" if self.runs == 1 else f"medians of {self.runs} runs"
        # As many of each, or else the number of each.
        alike = len(set(self.asked.values())) == 1
        of_each = ", ".join(self.asked if alike else (f"{count} {name}" for name, count in self.asked.items()))
        cores = "; client and server a core each" if self.cores_apart else ""
        return f"{runs} of {self.prompts} prompts" + (f" ({of_each})" if self.asked else "") + cores

    def label(self, way: str) -> str:
        """Return the variant's mode, numbered where several variants have the same."""
        mode = self._mode(way)
        same = [other for other in self.ways if self._mode(other) == mode]
        return mode if len(same) == 1 else f"{mode} {same.index(way) + 1}"

    def _mode(self, way: str) -> str:
        return str(self.ways[way]["choices"]["mode"])

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        """Return the fields, and on top the figures of the first variant asked for."""
        first = next((name for name in self.ways if name not in CONTROLS), next(iter(self.ways)))
        return {
            **asdict(self),
            "paced": self.pace is not None,
            "note": None if self.pace is None else PACED,
            "mode": first,
            **self._figures(first),
            "controls": {
                name.replace("-", "_"): self._figures(name) if name in self.ways else None for name in CONTROLS
            },
            "virtual": None,  # metrics of a replay with the same setting
        }

    def _figures(self, way: str) -> Figures:
        return {name: value for name, value in self.ways[way].items() if name not in _OF_WAY}


_OF_WAY = ("choices", "mismatches", "runs")  # beside the figures of a variant


@dataclass(frozen=True)  # without slots, for cached properties
class Scenario:
    """All runs of one setting; `variants` are those measured, the controls first.

    `families` has the family of each prompt of a run, `answers` a row per answer.
    """

    setting: ScenarioSetting
    variants: Sequence[ModeVariant]
    missing: Mapping[str, str]  # controls that are not available, and why
    runs: Sequence[ScenarioRun]
    families: Sequence[str] = ()
    answers: Sequence[Mapping[str, object]] = ()

    @property
    def mismatches(self) -> int:
        """Number of answers that differ from the stream's, over all variants and runs."""
        return sum(sum(run.mismatches.values()) for run in self.runs)

    @cached_property
    def intervals(self) -> Mapping[str, Intervals]:
        """95 % intervals of each variant's figures; see intervals.py."""
        return scenario_intervals(self.variants, self.runs)

    @cached_property
    def text_groups(self) -> Mapping[str, Scenario]:
        """The same scenario on easy and on hard text of the corpus alone; empty unless there is both."""
        if self.setting.questions is not None:
            return {}
        places = {
            name: [place for place, family in enumerate(self.families) if family in families]
            for name, families in TEXT_GROUPS.items()
        }
        return {name: self._at(chosen) for name, chosen in places.items()} if all(places.values()) else {}

    @property
    def round_trip(self) -> dict[str, Metric]:
        """R over all runs: the mean of all pings, its standard error and number, and the profile's own."""
        trips = [run.round_trips for run in self.runs]
        pings = sum(one.pings for one in trips)
        mean_ms = sum(one.pings * one.mean_ms for one in trips) / max(pings, 1)
        error_ms = sum((one.pings * one.standard_error_ms) ** 2 for one in trips) ** 0.5 / max(pings, 1)
        return {
            "mean_ms": mean_ms,
            "standard_error_ms": error_ms,
            "pings": pings,
            "profile_ms": self.setting.round_trip_ms,
        }

    @property
    def ideal_stream(self) -> Figures:
        """Speed of a stream without anything between its passes, 1000 / T_v, and its ratio to the stream."""
        speeds = [run.ideal_stream for run in self.runs]
        ratios = [
            ideal / own
            for run, ideal in zip(self.runs, speeds, strict=True)
            if ideal and STREAM in run.metrics and (own := run.metrics[STREAM].tokens_per_second)
        ]
        return {
            "tokens_per_second": median(speeds),
            "tokens_per_second_ci95": self.interval(IDEAL_STREAM, "tokens_per_second"),
            "ratio_to_stream": median(ratios),
        }

    def interval(self, name: str, key: str) -> Interval | None:
        """Return the 95 % interval of a variant's figure; None where it has none."""
        return self.intervals.get(name, {}).get(key)

    def medians_of(self, name: str) -> dict[str, Metric]:
        """Return medians over the runs, the ratios included."""
        runs = [run.metrics[name] for run in self.runs]
        ratios = [ratio for run in self.runs if (ratio := run.ratio_to_stream(name)) is not None]
        to_ideal = [
            own.tokens_per_second / ideal
            for own, run in zip(runs, self.runs, strict=True)
            if (ideal := run.ideal_stream) and own.tokens_per_second is not None
        ]
        of_ratios: dict[str, Metric] = {"ratio_to_stream": median(ratios), "ratio_to_ideal_stream": median(to_ideal)}
        for start, number in (("ttft", 1), ("to_32nd", LATER_TOKEN)):  # over the prompts of all runs
            begun = [ratio for run in self.runs for ratio in run.ratios_to_token(name, number)]
            of_ratios[f"{start}_ratio_to_stream"] = median(begun)
        return medians(runs) | of_ratios

    def _at(self, places: Sequence[int]) -> Scenario:
        return replace(
            self,
            setting=replace(self.setting, prompts=len(places)),
            runs=[run.at_places(self.variants, places) for run in self.runs],
            families=[self.families[place] for place in places],
            answers=(),
        )

    @cached_property
    def reported(self) -> ReportedCase:
        """The figures alone."""
        return ReportedCase(
            **{field.name: getattr(self.setting, field.name) for field in fields(self.setting)},
            runs=len(self.runs),
            mismatches=self.mismatches,
            ideal_stream=self.ideal_stream,
            missing=self.missing,
            ways={variant.name: self._in_full(variant) for variant in self.variants},
            text={name: group._text_group for name, group in self.text_groups.items()},
            round_trip=self.round_trip,
            round_trips=[asdict(run.round_trips) for run in self.runs],
            asked=dict(Counter(self.families)),
            answers=self.answers,
        )

    @property
    def _text_group(self) -> TextGroup:
        ways = {variant.name: self._figures(variant.name) for variant in self.variants}
        return TextGroup(sorted(set(self.families)), self.setting.prompts, self.ideal_stream, ways)

    def _figures(self, name: str) -> Figures:
        intervals = {f"{key}_ci95": interval for key, interval in self.intervals.get(name, {}).items()}
        return {**self.medians_of(name), **intervals}

    def _in_full(self, variant: ModeVariant) -> Figures:
        name = variant.name
        return {
            **self._figures(name),
            "choices": variant.choices_as_dict,
            "mismatches": sum(run.mismatches[name] for run in self.runs),
            "runs": [asdict(run.metrics[name]) | {"ratio_to_stream": run.ratio_to_stream(name)} for run in self.runs],
        }


def network_report(cases: Sequence[ReportedCase]) -> dict[str, Any]:  # Any: JSON
    """Put the first case's keys on top and all cases with their answers under `cases`."""
    first, *others = (case.as_dict() for case in cases)
    return {key: value for key, value in first.items() if key != "answers"} | {"cases": [first, *others]}
