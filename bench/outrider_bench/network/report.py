"""Reports of scenarios: medians over the runs, the controls, and the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from outrider_bench.core.stats import median
from outrider_bench.network.metrics import Metric, medians
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.variants import SERVER_DRAFT, STREAM, ModeVariant

PACED = (
    "paced: every pass of target and drafter lasts as long as on the named hardware, and features have the size "
    "that they would have; gRPC, link, codec and acceptance are real"
)
ReportDict = dict[str, object]


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


@dataclass(frozen=True, slots=True)
class Scenario:
    """All runs of one setting; `variants` are those measured, the controls first."""

    setting: ScenarioSetting
    variants: Sequence[ModeVariant]
    missing: Mapping[str, str]  # controls that are not available, and why
    runs: Sequence[ScenarioRun]

    @property
    def mismatches(self) -> int:
        """Number of answers that differ from the stream's, over all variants and runs."""
        return sum(sum(run.mismatches.values()) for run in self.runs)

    def label(self, variant: ModeVariant) -> str:
        """Return the variant's mode, numbered where several variants have the same."""
        same = [other.name for other in self.variants if other.mode == variant.mode]
        return variant.mode if len(same) == 1 else f"{variant.mode} {same.index(variant.name) + 1}"

    def medians_of(self, name: str) -> dict[str, Metric]:
        """Return medians over the runs, the ratio to the stream included."""
        ratios = [ratio for run in self.runs if (ratio := run.ratio_to_stream(name)) is not None]
        metrics = medians([run.metrics[name] for run in self.runs])
        return metrics | {"ratio_to_stream": median(ratios)} | self._first_token_medians(name)

    def _first_token_medians(self, name: str) -> dict[str, Metric]:
        """Return medians over the prompts of all runs."""
        begun = [run.first_tokens[name] for run in self.runs if name in run.first_tokens]
        of_first = [ratio for one in begun for ratio in one.ttft_ratios]
        of_32nd = [ratio for one in begun for ratio in one.to_32nd_ratios]
        return {
            "ttft_ratio_to_stream": median(of_first),
            "to_32nd_ratio_to_stream": median(of_32nd),
        }

    def as_dict(self) -> ReportDict:
        """Return the report: on top the metrics of the first variant asked for, under `ways` those of all."""
        first = next(
            (variant for variant in self.variants if variant.name not in (STREAM, SERVER_DRAFT)), self.variants[0]
        )
        pace = self.setting.pace
        return {
            **asdict(self.setting),
            "paced": pace is not None,
            "note": None if pace is None else PACED,
            "mode": first.name,
            "runs": len(self.runs),
            "mismatches": self.mismatches,
            **self.medians_of(first.name),
            "controls": {"stream": self._control(STREAM), "server_draft": self._control(SERVER_DRAFT)},
            "missing": dict(self.missing),
            "ways": {variant.name: self._in_full(variant.name) for variant in self.variants},
            "round_trips": [asdict(run.round_trips) for run in self.runs],
            "virtual": None,  # metrics of a replay with the same setting
        }

    def _control(self, name: str) -> dict[str, Metric] | None:
        return None if name in self.missing else self.medians_of(name)

    def _in_full(self, name: str) -> ReportDict:
        return {
            **self.medians_of(name),
            "choices": next(variant for variant in self.variants if variant.name == name).choices_as_dict,
            "mismatches": sum(run.mismatches[name] for run in self.runs),
            "runs": [asdict(run.metrics[name]) | {"ratio_to_stream": run.ratio_to_stream(name)} for run in self.runs],
        }


def network_report(scenarios: Sequence[Scenario]) -> ReportDict:
    """Put the first scenario's keys on top and all scenarios under `cases`."""
    return scenarios[0].as_dict() | {"cases": [scenario.as_dict() for scenario in scenarios]}
