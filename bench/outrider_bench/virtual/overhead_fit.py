"""Overhead fitted on cases of real reports, and which cases each fit has seen.

--overhead 5g.json                     every replay takes the mean over these cases
--overhead leave-one-out --against R   a replay takes the mean over the cases of R with another profile
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from outrider_bench.network.variants import ModeVariant, Options
from outrider_bench.virtual.overhead import AHEAD, IN_TURN, STREAM, MetricsByMode, Overhead
from outrider_bench.virtual.real_report import RealCase, real_cases
from outrider_bench.virtual.replay import ReplaySetup, link_of, replay
from outrider_proto.errors import UsageError

LEAVE_ONE_OUT = "leave-one-out"
_SETTINGS = ("pace", "codec", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class OverheadFit:
    """An overhead, and the cases that it was fitted on; by default none of either."""

    overhead: Overhead = field(default_factory=Overhead)
    cases: tuple[RealCase, ...] = ()

    def has_seen(self, judged: RealCase) -> bool:
        """Return whether any run of `judged` is one that the overhead was fitted on."""
        return any(judged.run_ids & case.run_ids for case in self.cases)

    @property
    def labels(self) -> list[str]:
        """The cases in words."""
        return [case.label for case in self.cases]

    def as_dict(self) -> dict[str, object]:
        cases = [
            {"report": str(one.report), "profile": one.profile, "runs": [number + 1 for number in one.runs]}
            for one in self.cases
        ]
        return asdict(self.overhead) | {"fitted_on": cases}


def fit_overheads(
    named: Sequence[str],
    judged: Sequence[RealCase],
    profiles: Sequence[str],
    setup: ReplaySetup,
    common: Options,
    seed: int,
) -> dict[str, OverheadFit]:
    """Fit the overhead for every profile.

    `named` are reports, or LEAVE_ONE_OUT alone; `common` are the replay's options for all variants. Raises UsageError
    for settings that differ from `setup`, and where modes or other cases are missing.
    """
    if LEAVE_ONE_OUT not in named:
        cases = real_cases(named)
        fit = _fitted([(case, _both(case, setup, common, seed)) for case in cases])
        return dict.fromkeys(profiles, fit)
    if len(named) > 1:
        raise UsageError(f"overhead={LEAVE_ONE_OUT}: it takes the reports of --against: name no others")
    measured = [(case, _both(case, setup, common, seed)) for case in judged]
    fits = {}
    for profile in profiles:
        others = [one for one in measured if one[0].profile != profile]
        if not others:
            raise UsageError(
                f"overhead={LEAVE_ONE_OUT}: no case of another profile than {profile}: name a report with one "
                "by --against"
            )
        fits[profile] = _fitted(others)
    return fits


def _fitted(measured: Sequence[tuple[RealCase, tuple[MetricsByMode, MetricsByMode]]]) -> OverheadFit:
    if not measured:
        return OverheadFit()
    return OverheadFit(Overhead.fitted([both for _, both in measured]), tuple(case for case, _ in measured))


def _both(case: RealCase, setup: ReplaySetup, common: Options, seed: int) -> tuple[MetricsByMode, MetricsByMode]:
    """Return the metrics of the case and of a replay without overhead, by mode."""
    _check(case, setup)
    names = {mode: name for mode in (STREAM, IN_TURN, AHEAD) if (name := _first_of(mode, case.ways)) is not None}
    variants = [ModeVariant.parse(name, common) for name in names.values()]
    bare = replay(replace(setup, profile=link_of(case.profile), overhead=Overhead()), variants, seed).metrics
    return (
        {mode: case.metrics(name) for mode, name in names.items()},
        {mode: asdict(bare[name]) for mode, name in names.items()},
    )


def _first_of(mode: str, ways: Mapping[str, object]) -> str | None:
    return next((name for name in ways if name.partition(",")[0] == mode), None)


def _check(case: RealCase, setup: ReplaySetup) -> None:
    here = {"pace": setup.pace.name, "codec": setup.codec, "max_new_tokens": setup.max_new_tokens}
    for name in _SETTINGS:
        if case.content[name] != here[name]:
            raise UsageError(f"{case.report}: {name}={case.content[name]}, here {here[name]}: make them the same")
