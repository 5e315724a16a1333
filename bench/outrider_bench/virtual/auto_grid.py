"""A check that `auto` is as fast as the best mode, on a grid of points, with and without server-draft.

Required: at least 0.95 of the best mode, and 0.98 of stream and, where it is available, of server-draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from outrider_bench.core.tables import ResultTable, table
from outrider_bench.network.records import Row
from outrider_bench.network.variants import CONTROLS, SERVER_DRAFT, ModeVariant
from outrider_bench.virtual.sweep import SweepConditions, SweepGrid, SweepPoint, sweep
from outrider_bench.virtual.tape import Tape

AUTO = "auto"
AUTO_GRID = SweepGrid((15.0, 50.0, 120.0), (15.0, 50.0), (0.0, 0.3))
OF_BEST, OF_CONTROL = 0.95, 0.98


@dataclass(frozen=True, slots=True)
class AutoResult:
    """`auto` at one point; `fixed` has tokens per second of the modes that it could choose."""

    rtt_ms: float
    verify_ms: float
    tau: float
    server_draft: bool  # available
    auto: float  # tokens a second
    fixed: Mapping[str, float]

    @property
    def best(self) -> str:
        return max(self.fixed, key=lambda name: self.fixed[name])

    @property
    def ratios(self) -> dict[str, float]:
        """Speed of `auto` as a ratio to the best mode and to the controls."""
        of_controls = {name: self.auto / self.fixed[name] for name in CONTROLS if name in self.fixed}
        return {"best": self.auto / self.fixed[self.best], **of_controls}

    @property
    def holds(self) -> bool:
        return all(ratio >= (OF_BEST if name == "best" else OF_CONTROL) for name, ratio in self.ratios.items())

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"best": self.best, "ratios": self.ratios, "holds": self.holds}


def measure_auto(
    tape: Tape,
    grid: SweepGrid,
    variants: Sequence[ModeVariant],
    conditions: SweepConditions,
    step: Callable[[], None],
    keep: Callable[[list[Row]], None] = lambda rows: None,
) -> list[AutoResult]:
    """Measure every point, first with server-draft available.

    `variants` have the controls and `auto` among them; only `auto` learns, and gets all rounds. `step` and `keep` are
    called three times per point, as in `sweep`.
    """
    fixed, auto = ([variant for variant in variants if (variant.name == AUTO) is chosen] for chosen in (False, True))
    # Fixed modes do not learn, so one round gives the same as all.
    alone = sweep(tape, grid, fixed, replace(conditions, rounds=1), step, keep)
    offered = sweep(tape, grid, auto, conditions, step, keep)
    not_offered = sweep(tape, grid, auto, replace(conditions, server_draft=False), step, keep)
    return [
        result
        for point, *others in zip(alone, offered, not_offered, strict=True)
        for result in (_result(point, others[0], True), _result(point, others[1], False))
    ]


def auto_table(results: Sequence[AutoResult]) -> ResultTable:
    """Build a row per point: tokens per second, and the ratios of `auto`."""
    names = list(results[0].fixed)
    rows = [
        [
            f"{one.rtt_ms:g}",
            f"{one.verify_ms:g}",
            f"{one.tau:.1f}",
            *(f"{one.fixed[name]:.0f}" if name in one.fixed else "-" for name in names),
            f"{one.auto:.0f}",
            f"{one.ratios['best']:.2f}",
            f"{min(one.ratios[name] for name in CONTROLS if name in one.ratios):.2f}",
            "" if one.holds else "off",
        ]
        for one in results
    ]
    short = [name.replace("-", "-\n", 1) for name in names]
    columns = ("R", "T_v", "tau", *short, AUTO, "/ best", "/ con-\ntrol", "")
    return table("tokens a second; auto beside the best mode and the faster control", columns, rows, keys=3)


def _result(modes: SweepPoint, auto: SweepPoint, server_draft: bool) -> AutoResult:
    speeds = modes.tokens_per_second.items()
    fixed = {name: speed for name, speed in speeds if server_draft or name != SERVER_DRAFT}
    return AutoResult(modes.rtt_ms, modes.verify_ms, modes.tau, server_draft, auto.tokens_per_second[AUTO], fixed)
