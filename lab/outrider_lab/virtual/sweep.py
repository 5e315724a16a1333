"""Maps of the fastest mode: replays over a grid of round trips R, verify times T_v and thinned tapes (tau)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Self

from outrider_bench.core.bootstrap import Interval, Resamples, quotient
from outrider_bench.core.plots import saved_figure
from outrider_bench.core.tables import ResultTable, table
from outrider_bench.network.scenario_run import ScenarioRun
from outrider_bench.network.variants import CONTROLS, STREAM, ModeVariant
from outrider_drafters.emulation.pace import Pace
from outrider_lab.virtual.replay import ReplaySetup, replay
from outrider_lab.virtual.tape import Tape, Thinning, thinned
from outrider_lab.virtual.texts import TapedTexts
from outrider_netsim import Direction, Profile
from outrider_proto.errors import UsageError
from outrider_proto.frames import Codec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OF_CONTROLS = {"stream": "#BDBDBD", "server-draft": "#8C8C8C"}
_COLORS = ("#9ECAE9", "#FFBF79", "#88D27A", "#D6A5C9", "#FF9D98", "#B2DFDB")


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """R and T_v in ms, and shares of the tokens that the drafter misses. Raises UsageError."""

    round_trips_ms: tuple[float, ...]
    verify_ms: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values in (("rtt", self.round_trips_ms), ("verify", self.verify_ms), ("thin", self.shares)):
            if not values or min(values) < 0:
                raise UsageError(f"{name}={','.join(map(str, values))}: need at least one number, none below 0")
            if list(values) != sorted(set(values)):
                raise UsageError(f"{name}={','.join(map(str, values))}: need them in order, each once")

    @classmethod
    def of(cls, points: Sequence[SweepPoint]) -> Self:
        """Return the grid that was swept."""
        values = (sorted({getattr(point, name) for point in points}) for name in ("rtt_ms", "verify_ms", "share"))
        return cls(*map(tuple, values))

    def __len__(self) -> int:
        return len(self.round_trips_ms) * len(self.verify_ms) * len(self.shares)

    def __iter__(self) -> Iterator[tuple[float, float, float]]:
        """Yield share, T_v and R of every point."""
        for share in self.shares:
            for verify_ms in self.verify_ms:
                for rtt_ms in self.round_trips_ms:
                    yield share, verify_ms, rtt_ms


@dataclass(frozen=True, slots=True)
class SweepConditions:
    """Settings that are the same at all points.

    The round trip is constant and halved over both directions; the seed is that of links and thinning.
    """

    pace: Pace
    codec: Codec = "int8"
    max_new_tokens: int = 64
    seed: int = 1
    rate_bps: float = 50e6

    def setup(self, texts: TapedTexts, pace: Pace, rtt_ms: float) -> ReplaySetup:
        """Return the replay setup of one point."""
        profile = Profile.symmetric(f"{rtt_ms:g} ms", Direction(rtt_ms / 2, rate_bps=self.rate_bps))
        return ReplaySetup(texts, profile, pace, self.codec, self.max_new_tokens)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Tokens per second and tau by variant; `rtt_ms` is the nominal round trip, `pinged_ms` the measured one.

    `*_ci95` are 95 % intervals over the choice of prompts: of the speeds, and of the fastest one's ratio to the second.
    """

    rtt_ms: float
    verify_ms: float
    share: float
    pinged_ms: float
    tokens_per_second: Mapping[str, float]
    mean_acceptance_length: Mapping[str, float]
    mismatches: int
    tokens_per_second_ci95: Mapping[str, Interval | None] = field(default_factory=dict)
    lead_ci95: Interval | None = None

    @property
    def is_decided(self) -> bool | None:
        """Whether the lead holds for other prompts of the kind; None where a single prompt was asked."""
        return None if self.lead_ci95 is None else self.lead_ci95[0] > 1

    @property
    def best(self) -> str:
        """The fastest variant; the first of equals."""
        return max(self.tokens_per_second, key=lambda name: self.tokens_per_second[name])

    @property
    def ratio_to_stream(self) -> float:
        """Speed of the fastest variant as a ratio to the stream."""
        return self.tokens_per_second[self.best] / self.tokens_per_second[STREAM]

    @property
    def lead_text(self) -> str:
        """The ratio to the stream, after ~ where the lead is not decided."""
        return f"{'~' if self.is_decided is False else ''}{self.ratio_to_stream:.2f}"

    @property
    def tau(self) -> float:
        """Mean acceptance length of the first variant that drafts on the client."""
        own = [tau for name, tau in self.mean_acceptance_length.items() if name not in CONTROLS]
        return own[0] if own else 1.0

    def as_dict(self) -> dict[str, object]:
        computed = {"ratio_to_stream": self.ratio_to_stream, "decided": self.is_decided}
        return asdict(self) | {"tau": self.tau, "best": self.best} | computed


def sweep(
    tape: Tape,
    grid: SweepGrid,
    variants: Sequence[ModeVariant],
    conditions: SweepConditions,
    step: Callable[[], None] = lambda: None,
) -> list[SweepPoint]:
    """Replay every point in the grid's order; `step` is called after each."""
    points, texts, thinned_by = [], TapedTexts(tape), 0.0
    for share, verify_ms, rtt_ms in grid:
        # Texts cache their drafts, and points of one share come together.
        if share != thinned_by:
            texts, thinned_by = TapedTexts(thinned(tape, Thinning(share, conditions.seed))), share
        pace = replace(conditions.pace, verify_ms=verify_ms)
        setup = conditions.setup(texts, pace, rtt_ms)
        run = replay(setup, variants, conditions.seed)
        points.append(_point(rtt_ms, verify_ms, share, run))
        step()
    return points


def _point(rtt_ms: float, verify_ms: float, share: float, run: ScenarioRun) -> SweepPoint:
    metrics = run.metrics.items()
    draws = Resamples(1, len(next(iter(run.answers.values()))))
    speeds = {
        name: quotient(
            draws.sums([[one.decoded_tokens * 1e3 for one in given]]), draws.sums([[one.decode_ms for one in given]])
        )
        for name, given in run.answers.items()
    }
    by_speed = sorted(speeds, key=lambda name: run.metrics[name].tokens_per_second or 0.0, reverse=True)
    # Paired prompt by prompt: both are of the same draws.
    lead = draws.interval(quotient(speeds[by_speed[0]], speeds[by_speed[1]])) if len(by_speed) > 1 else None
    return SweepPoint(
        rtt_ms,
        verify_ms,
        share,
        run.round_trips.mean_ms,
        {name: one.tokens_per_second or 0.0 for name, one in metrics},
        {name: one.mean_acceptance_length or 0.0 for name, one in metrics},
        sum(run.mismatches.values()),
        {name: draws.interval(speed) for name, speed in speeds.items()},
        lead,
    )


def sweep_table(points: Sequence[SweepPoint]) -> ResultTable:
    """Build the map as a table: a row for each drafter and time of a pass, a column for each round trip."""
    grid = SweepGrid.of(points)
    at = {(point.share, point.verify_ms, point.rtt_ms): point for point in points}
    rows = [
        [
            f"{share:g}",
            f"{verify:g}",
            *(f"{at[share, verify, trip].best} {at[share, verify, trip].lead_text}" for trip in grid.round_trips_ms),
        ]
        for share in grid.shares
        for verify in grid.verify_ms
    ]
    columns = ("tokens missed", "pass, ms", *(f"R {trip:g} ms" for trip in grid.round_trips_ms))
    title, caption = "the fastest mode, and its speed over the stream's", "~: not beyond the second's 95 % interval"
    return table(title, columns, rows, keys=2, caption=caption)


def plot_sweep(points: Sequence[SweepPoint], title: str, path: Path) -> None:
    """Color each point by its fastest variant, and print its ratio to the stream, after ~ where it is not decided."""
    from matplotlib.patches import Patch

    grid, names = SweepGrid.of(points), list(points[0].tokens_per_second)
    colors = _colors(names)
    size = (max(6.0, 0.75 * len(grid.round_trips_ms) + 1.2), 0.55 * len(grid.verify_ms) + 1.1)
    with saved_figure(
        path, len(grid.shares), 1, figsize=(size[0], size[1] * len(grid.shares) + 1.0), squeeze=False
    ) as (figure, panels):
        for axes, share in zip(panels[:, 0], grid.shares, strict=True):
            _plot_panel(axes, grid, [point for point in points if point.share == share], colors)
        panels[-1, 0].set_xlabel("round trip R [ms]")
        handles = [Patch(color=colors[name], label=name) for name in names]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle(title, fontsize="medium")


def _plot_panel(axes: Axes, grid: SweepGrid, points: Sequence[SweepPoint], colors: dict[str, str]) -> None:
    from matplotlib.patches import Rectangle

    for point in points:
        x, y = grid.round_trips_ms.index(point.rtt_ms), grid.verify_ms.index(point.verify_ms)
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colors[point.best], edgecolor="white"))
        axes.text(x + 0.5, y + 0.5, point.lead_text, ha="center", va="center", fontsize="small")
    axes.set_xlim(0, len(grid.round_trips_ms))
    axes.set_ylim(0, len(grid.verify_ms))
    axes.set_xticks([x + 0.5 for x in range(len(grid.round_trips_ms))], [f"{value:g}" for value in grid.round_trips_ms])
    axes.set_yticks([y + 0.5 for y in range(len(grid.verify_ms))], [f"{value:g}" for value in grid.verify_ms])
    axes.set_ylabel("T_v [ms]")
    axes.set_title(f"tau {fmean(point.tau for point in points):.1f}", fontsize="medium")


def _colors(names: Sequence[str]) -> dict[str, str]:
    others = (name for name in names if name not in CONTROLS)
    return _OF_CONTROLS | dict(zip(others, cycle(_COLORS), strict=False))
