"""The report of one case and of several: medians over the runs, the controls beside, and how it was made."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from outrider_bench.network.case import Run
from outrider_bench.network.figures import Figure, medians
from outrider_bench.network.ways import SERVER_DRAFT, STREAM, Way

PACED = (
    "paced: every pass of target and drafter lasts as long as on the named hardware, and features weigh what they "
    "would; gRPC, link, codec and acceptance are real"
)
Told = dict[str, object]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a case was measured under; `round_trip_ms` is what the profile claims."""

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
class Case:
    """All runs of one setting. `ways` are those measured, the controls among them, those asked for last."""

    setting: Setting
    ways: Sequence[Way]
    missing: Mapping[str, str]  # controls that could not be had, and why
    runs: Sequence[Run]

    @property
    def mismatches(self) -> int:
        """Answers, of all ways and runs, that differ from the stream's."""
        return sum(sum(run.mismatches.values()) for run in self.runs)

    def label(self, way: Way) -> str:
        """Its mode, numbered where several have the same."""
        same = [other.name for other in self.ways if other.mode == way.mode]
        return way.mode if len(same) == 1 else f"{way.mode} {same.index(way.name) + 1}"

    def of_way(self, name: str) -> dict[str, Figure]:
        """Medians over the runs, the ratio to the stream among them."""
        ratios = [ratio for run in self.runs if (ratio := run.ratio_to_stream(name)) is not None]
        figures = medians([run.figures[name] for run in self.runs])
        return figures | {"ratio_to_stream": statistics.median(ratios) if ratios else None} | self._beginnings(name)

    def _beginnings(self, name: str) -> dict[str, Figure]:
        """Medians over the prompts of all runs."""
        begun = [run.beginnings[name] for run in self.runs if name in run.beginnings]
        of_first = [ratio for one in begun for ratio in one.ttft_ratios]
        of_32nd = [ratio for one in begun for ratio in one.to_32nd_ratios]
        return {
            "ttft_ratio_to_stream": statistics.median(of_first) if of_first else None,
            "to_32nd_ratio_to_stream": statistics.median(of_32nd) if of_32nd else None,
        }

    def as_dict(self) -> Told:
        """The figures of the way asked for first are its own; `ways` has all of them, with every run's."""
        first = next((way for way in self.ways if way.name not in (STREAM, SERVER_DRAFT)), self.ways[0])
        pace = self.setting.pace
        return {
            **asdict(self.setting),
            "paced": pace is not None,
            "note": None if pace is None else PACED,
            "mode": first.name,
            "runs": len(self.runs),
            "mismatches": self.mismatches,
            **self.of_way(first.name),
            "controls": {"stream": self._control(STREAM), "server_draft": self._control(SERVER_DRAFT)},
            "missing": dict(self.missing),
            "ways": {way.name: self._in_full(way.name) for way in self.ways},
            "round_trips": [asdict(run.round_trips) for run in self.runs],
            "virtual": None,  # the virtual-time engine's figures for the same setting
        }

    def _control(self, name: str) -> dict[str, Figure] | None:
        return None if name in self.missing else self.of_way(name)

    def _in_full(self, name: str) -> Told:
        return {
            **self.of_way(name),
            "choices": next(way for way in self.ways if way.name == name).told,
            "mismatches": sum(run.mismatches[name] for run in self.runs),
            "runs": [asdict(run.figures[name]) | {"ratio_to_stream": run.ratio_to_stream(name)} for run in self.runs],
        }


def network_report(cases: Sequence[Case]) -> Told:
    """The first case's keys on top, all cases below."""
    return cases[0].as_dict() | {"cases": [case.as_dict() for case in cases]}
