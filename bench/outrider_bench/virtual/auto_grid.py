"""A check that `auto` is as fast as the best mode, on a grid of points, with and without server-draft.

Required: at least 0.95 of the best mode, and 0.98 of stream and, where it is available, of server-draft.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from outrider_bench.core.bootstrap import Floats, Interval
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, table
from outrider_bench.network.intervals import DecodedPrompts
from outrider_bench.network.records import Row
from outrider_bench.network.variants import CONTROLS, SERVER_DRAFT, ModeVariant
from outrider_bench.virtual.sweep import SweepConditions, SweepGrid, SweepPoint, sweep
from outrider_bench.virtual.tape import Tape

AUTO = "auto"
AUTO_GRID = SweepGrid((15.0, 50.0, 120.0), (15.0, 50.0), (0.0, 0.3))
OF_BEST, OF_CONTROL = 0.95, 0.98


@dataclass(frozen=True, slots=True)
class AutoResult:
    """`auto` at one point; `fixed` has tokens per second of the modes that it could choose.

    `ratios_ci95` are 95 % intervals of `ratios` over the choice of prompts.
    """

    rtt_ms: float
    verify_ms: float
    tau: float
    server_draft: bool  # available
    auto: float  # tokens a second
    fixed: Mapping[str, float]
    ratios_ci95: Mapping[str, Interval | None] = field(default_factory=dict)

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
        return all(ratio >= _bound(name) for name, ratio in self.ratios.items())

    @property
    def is_surely_off(self) -> bool:
        """Whether a ratio stays below its bound for other prompts of the kind."""
        return any(interval is not None and interval[1] < _bound(name) for name, interval in self.ratios_ci95.items())

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {
            "best": self.best,
            "ratios": self.ratios,
            "holds": self.holds,
            "surely_off": self.is_surely_off,
        }


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
    rows: list[Row] = []

    def take(new: list[Row]) -> None:
        rows.extend(new)
        keep(new)

    fixed, auto = ([variant for variant in variants if (variant.name == AUTO) is chosen] for chosen in (False, True))
    # Fixed modes do not learn, so one round gives the same as all.
    alone = sweep(tape, grid, fixed, replace(conditions, rounds=1), step, take)
    offered = sweep(tape, grid, auto, conditions, step, take)
    not_offered = sweep(tape, grid, auto, replace(conditions, server_draft=False), step, take)
    decoded = _decoded(rows, len(tape.recordings))
    return [
        result
        for point, *others in zip(alone, offered, not_offered, strict=True)
        for result in (_result(point, others[0], True, decoded), _result(point, others[1], False, decoded))
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
            plus_minus(one.ratios["best"], one.ratios_ci95.get("best"), 2),
            plus_minus(one.ratios[control], one.ratios_ci95.get(control), 2),
            "" if one.holds else "off" if one.is_surely_off else "off?",
        ]
        for one in results
        for control in [min((name for name in CONTROLS if name in one.ratios), key=lambda name: one.ratios[name])]
    ]
    short = [name.replace("-", "-\n", 1) for name in names]
    columns = ("R", "T_v", "tau", *short, AUTO, "/ best", "/ con-\ntrol", "")
    title = "tokens a second; auto beside the best mode and the faster control"
    return table(title, columns, rows, keys=3, caption=f"{OVER_PROMPTS}; off?: not beyond it")


_Decoded = Mapping[tuple[float, float, float, bool, str], DecodedPrompts]  # R, T_v, share, server-draft offered, way


def _result(modes: SweepPoint, auto: SweepPoint, server_draft: bool, decoded: _Decoded) -> AutoResult:
    speeds = modes.tokens_per_second.items()
    fixed = {name: speed for name, speed in speeds if server_draft or name != SERVER_DRAFT}
    point = (modes.rtt_ms, modes.verify_ms, modes.share)
    result = AutoResult(modes.rtt_ms, modes.verify_ms, modes.tau, server_draft, auto.tokens_per_second[AUTO], fixed)
    mine = decoded[*point, server_draft, AUTO]
    # Fixed modes were replayed with server-draft offered, which makes no difference to the others.
    of_fixed = {
        name: mine.ratio_ci95(decoded[*point, True, result.best if name == "best" else name]) for name in result.ratios
    }
    return replace(result, ratios_ci95=of_fixed)


def _decoded(rows: Sequence[Row], prompts: int) -> _Decoded:
    """Sum the rows of a way at a point by prompt; the rounds of one session belong together."""
    sums: dict[tuple[float, float, float, bool, str], Floats] = defaultdict(lambda: np.zeros((2, 1, prompts)))
    for row in rows:
        point = (row["nominal_rtt_ms"], row["nominal_verify_ms"], row["thin"], row["server_draft"], row["way"])
        sums[point][:, 0, row["place"] % prompts] += (row["decoded_tokens"], row["decode_ms"])
    return {point: DecodedPrompts(*both) for point, both in sums.items()}


def _bound(ratio: str) -> float:
    return OF_BEST if ratio == "best" else OF_CONTROL
