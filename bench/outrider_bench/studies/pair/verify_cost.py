"""Time of a target pass over n new tokens, against a decode of a single token.

Speculation pays as long as a pass over a whole tree costs little more than a decode. Every size is a root and a chain
below it, run as the server runs a draft; nothing is committed, so every pass has the same context. In each round all
sizes run in random order, so that whatever else the machine does affects all of them. Intervals are over the rounds.
"""

from __future__ import annotations

import random
import statistics
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field

from outrider_bench.core.bootstrap import Interval, Resamples, quotient
from outrider_bench.core.plots import COLORS, reaches, saved_figure
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.tables import ResultTable, plus_minus, table
from outrider_bench.harness.study import WholeStudy
from outrider_bench.studies.options import VerifyCostOptions
from outrider_models.core.embedded import target_source
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target

SIZES = (1, 2, 4, 8, 16, 32, 64)
_WARM_UP = 3  # rounds


@dataclass(frozen=True, slots=True)
class VerifyCost:
    """Time of a pass over `tokens` new tokens, and the ratio of its median to that of one token.

    `*_ci95`: 95 % intervals.
    """

    tokens: int
    median_ms: float
    fastest_ms: float
    slowest_ms: float
    ratio: float
    median_ms_ci95: Interval | None
    ratio_ci95: Interval | None


@dataclass(frozen=True, slots=True)
class VerifyCostReport:
    """Costs by size, and what was measured on what device."""

    target: str
    context: int
    repeats: int
    dtype: str
    device: str
    pass_: Annotated[Literal["plain", "fused"], Field(alias="pass")]
    costs: abc.Sequence[VerifyCost]


class VerifyCostStudy(WholeStudy[VerifyCostOptions, VerifyCostReport]):
    async def measure(self, step: Step) -> VerifyCostReport:
        options = self.options
        target = Target.load(str(target_source(options.target)), options.dtype, options.device, fused=not options.plain)
        if (count := options.threads or (1 if target.is_small else None)) is not None:
            torch.set_num_threads(count)
        counter = ProgressCounter(step, "passes", options.repeats)
        return VerifyCostReport(
            target=target.name,
            context=options.context,
            repeats=options.repeats,
            dtype=options.dtype,
            device=device_name(options.device),
            pass_="plain" if target.fused is None else "fused",
            costs=verify_costs(target, options.context, options.repeats, counter),
        )

    @staticmethod
    def tables(report: VerifyCostReport) -> list[ResultTable]:
        return [verify_cost_table(report.target, report.context, report.costs)]

    @staticmethod
    def plot(report: VerifyCostReport, path: Path) -> None:
        title = f"{report.target}, {report.dtype}, {report.device}, {report.context} tokens before"
        plot_verify_costs(title, report.costs, path)


def verify_costs(
    target: Target, context: int, repeats: int, step: Callable[[], None] = lambda: None
) -> list[VerifyCost]:
    """Measure all SIZES after `context` tokens, as medians of `repeats` passes.

    `step` is called after every round. Raises UsageError where the target's context has no room for them.
    """
    room = target.max_context - SIZES[-1] - 1
    if not 1 <= context <= room:
        raise UsageError(f"context={context}: need 1 to {room}, so that {SIZES[-1]} more tokens fit into it")
    engine, sequence = Engine(target), Sequence(target.kv, None)
    _prefill(engine, sequence, context)
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(_WARM_UP + repeats):
        for size in random.Random(number).sample(SIZES, len(SIZES)):
            seconds = _pass_s(engine, sequence, size)
            if number >= _WARM_UP:
                times[size].append(seconds * 1e3)
        if number >= _WARM_UP:
            step()
    draws = Resamples(1, repeats)
    return [_cost(size, each, times[1], draws) for size, each in times.items()]


def _cost(tokens: int, times_ms: list[float], decode_ms: list[float], draws: Resamples) -> VerifyCost:
    drawn, drawn_decode = (draws.medians([times]) for times in (times_ms, decode_ms))
    median = statistics.median(times_ms)
    return VerifyCost(
        tokens,
        median_ms=round(median, 4),
        fastest_ms=round(min(times_ms), 4),
        slowest_ms=round(max(times_ms), 4),
        ratio=round(median / statistics.median(decode_ms), 4),
        median_ms_ci95=draws.interval(drawn),
        ratio_ci95=draws.interval(quotient(drawn, drawn_decode)),
    )


def _prefill(engine: Engine, sequence: Sequence, count: int) -> None:
    (outcome,) = engine.verify([StepInput(sequence, _tokens(engine, count))])
    engine.commit(outcome)


def _pass_s(engine: Engine, sequence: Sequence, size: int) -> float:
    """Return the seconds of one pass over a root and size - 1 drafted tokens."""
    root, *drafted = _tokens(engine, size)
    (outcome,) = engine.verify([StepInput(sequence, (root,), DraftTree.chain(drafted), Sampler(Sampling()))])
    return outcome.timing.ended - outcome.timing.started


def _tokens(engine: Engine, count: int) -> list[int]:
    """Return arbitrary tokens."""
    return [(7919 * i + 13) % engine.target.vocab_size for i in range(count)]


def verify_cost_table(name: str, context: int, costs: abc.Sequence[VerifyCost]) -> ResultTable:
    rows = [
        [
            f"{cost.tokens}",
            plus_minus(cost.median_ms, cost.median_ms_ci95, 2),
            *(f"{ms:.2f}" for ms in (cost.fastest_ms, cost.slowest_ms)),
            plus_minus(cost.ratio, cost.ratio_ci95, 2),
        ]
        for cost in costs
    ]
    columns = ("new tokens", "median ms", "fastest", "slowest", "x decode")
    return table(f"a pass of {name} after {context} tokens", columns, rows, caption="±: 95 % interval over the rounds")


def device_name(name: str) -> str:
    """Return the name of the accelerator, or of the device."""
    return torch.cuda.get_device_name(name) if name.startswith("cuda") else name


def plot_verify_costs(title: str, costs: abc.Sequence[VerifyCost], path: Path) -> None:
    """Plot the time of a pass, in decodes, against its new tokens."""
    with saved_figure(path, figsize=(6.5, 4.5)) as (_, axes):
        sizes = [cost.tokens for cost in costs]
        ratios = {str(cost.tokens): cost.ratio for cost in costs}
        errors = reaches(ratios, {str(cost.tokens): cost.ratio_ci95 for cost in costs})
        axes.errorbar(sizes, list(ratios.values()), errors, fmt="o-", capsize=2, color=COLORS[0], label="one pass")
        axes.plot(sizes, sizes, "--", color="grey", label="as many decodes")
        axes.axhline(1, color="black", linewidth=1, label="one decode")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_yticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel("new tokens in a pass")
        axes.set_ylabel("time of the pass, in decodes")
        axes.set_title(title, fontsize="medium")
        axes.legend(frameon=False)
