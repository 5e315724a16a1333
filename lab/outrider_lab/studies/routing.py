"""Routing between two heads: each head alone, and both, with and without the gate, in sequence and batched.

The ways of `comparison` are these variants, so that all of them answer a prompt before the next one. A router begins a
prompt with the head that it ended the one before with, as in any session; after an interruption, with the first head.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from outrider_bench.core.acceptance import ALL
from outrider_bench.core.answer_record import AnswerRecord
from outrider_bench.core.bootstrap import Interval, ratio_interval
from outrider_bench.core.pair import stop_and_wait_config
from outrider_bench.core.progress import Step
from outrider_bench.core.stats import median_of_medians
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, plus_minuses, table
from outrider_bench.harness.options import sources_of
from outrider_bench.harness.study import Measured, Study
from outrider_bench.studies.drafters.comparison import (
    ComparedRow,
    compare_entries,
    comparison_of,
    drafter_label,
    mismatches_of,
    rounds_of,
)
from outrider_bench.studies.drafters.comparison_report import PLAIN, Comparison
from outrider_bench.studies.drafters.ways import DrafterEntry
from outrider_client.core.head_statistics import AcceptedMeans, HeadUse
from outrider_drafters.routing.rules import Routing
from outrider_lab.studies.options import RoutingOptions


@dataclass(frozen=True, slots=True)
class RoutingCost:
    """What a way takes to draft, over all answers; trees and passes are counted as in HeadUse.

    `extra_drafts` is a share: the routing report's routers take 1.0, which is +100 %. `skipped`: share of cycles in
    which the gate skipped the other head. `draft_ms`: of a cycle.
    """

    drafts_per_1000_tokens: float
    passes_per_1000_tokens: float
    extra_drafts: float
    skipped: float
    draft_ms: float
    draft_ms_ci95: Interval | None
    shares: Mapping[str, float]
    accepted_tokens: int
    rejected_tokens: int
    confidence: AcceptedMeans
    entropy: AcceptedMeans

    @classmethod
    def of(cls, answers: Sequence[AnswerRecord]) -> RoutingCost:
        uses = [answer.statistics.heads for answer in answers]
        tokens = sum(len(answer.token_ids) for answer in answers)
        by_answer = [sum(use.cycles.values()) for use in uses]
        cycles, drafts = sum(by_answer), sum(use.drafts for use in uses)
        draft_ms = [answer.statistics.split_ms.draft * len(answer.token_ids) for answer in answers]
        return cls(
            drafts_per_1000_tokens=drafts * 1000 / tokens,
            passes_per_1000_tokens=sum(use.passes for use in uses) * 1000 / tokens,
            extra_drafts=drafts / cycles - 1,
            skipped=sum(use.gate_skips for use in uses) / cycles,
            draft_ms=sum(draft_ms) / cycles,
            draft_ms_ci95=ratio_interval(draft_ms, by_answer),
            shares={name: sum(use.cycles[name] for use in uses) / cycles for name in uses[0].cycles},
            accepted_tokens=sum(use.accepted_tokens for use in uses),
            rejected_tokens=sum(use.rejected_tokens for use in uses),
            confidence=_weighted_means((use, use.confidence) for use in uses),
            entropy=_weighted_means((use, use.entropy) for use in uses),
        )


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """Costs by way; `alone` are the ways of one head, in their order."""

    heads: tuple[str, str]
    gate: float
    alone: tuple[str, str]
    costs: Mapping[str, RoutingCost]
    comparison: Comparison


class RoutingStudy(Study[RoutingOptions, ComparedRow, RoutingReport]):
    def run(self, taken: Mapping[str, ComparedRow], step: Step) -> Measured[ComparedRow]:
        options = self.options
        config = partial(stop_and_wait_config, target=options.directory)
        first, second = (sources_of([name])[name] for name in options.heads)
        one, other = self._alone
        entries = {one: DrafterEntry(config(drafter=first)), other: DrafterEntry(config(drafter=second))}
        both = config(drafter=first, other_heads=(second,))
        entries |= {name: DrafterEntry(replace(both, routing=way)) for name, way in routings(options.gate).items()}
        return compare_entries(options, entries, options.per_family, taken, step)

    def report(self, rows: Mapping[str, ComparedRow]) -> RoutingReport:
        options, comparison, rounds = self.options, comparison_of(rows), rounds_of(rows)
        records = {way: [one[way].record for one in rounds] for way in comparison.drafters}
        costs = {way: RoutingCost.of([one for one in its if one is not None]) for way, its in records.items()}
        return RoutingReport(options.heads, options.gate, self._alone, costs, comparison)

    @property
    def _alone(self) -> tuple[str, str]:
        first, second = (f"head {place}: {drafter_label(name)}" for place, name in enumerate(self.options.heads, 1))
        return first, second

    @staticmethod
    def tables(report: RoutingReport) -> list[ResultTable]:
        return [tau_table(report), speed_table(report), cost_table(report), confidence_table(report)]

    @staticmethod
    def failures(report: RoutingReport) -> list[str]:
        return mismatches_of(report.comparison)


def routings(gate: float) -> dict[str, Routing]:
    """Name the ways to route between both heads."""
    return {
        "confidence, one after another": Routing(batched=False),
        "confidence, one batch": Routing(),
        "entropy, one batch": Routing("entropy"),
        f"gate {gate:g}, one after another": Routing(gate=gate, batched=False),
        f"gate {gate:g}, one batch": Routing(gate=gate),
    }


def _weighted_means(splits: Iterable[tuple[HeadUse, AcceptedMeans]]) -> AcceptedMeans:
    """Return the means over all answers' tokens."""
    some = list(splits)
    accepted = sum(use.accepted_tokens for use, _ in some)
    rejected = sum(use.rejected_tokens for use, _ in some)
    return AcceptedMeans(
        sum(split.accepted * use.accepted_tokens for use, split in some) / max(accepted, 1),
        sum(split.rejected * use.rejected_tokens for use, split in some) / max(rejected, 1),
    )


def tau_table(report: RoutingReport) -> ResultTable:
    """Build a row per way, and one of the first router against the better head alone (the report's tables 1 and 2)."""
    drafters = report.comparison.drafters
    figures = {way: {**its.tau, **its.tau_by_group, ALL: its.overall} for way, its in drafters.items()}
    rows = [[way, *plus_minuses(figures[way], its.tau_ci95, 2)] for way, its in drafters.items()]
    router = next(way for way in drafters if way not in report.alone)
    better = {text: max(figures[way][text] for way in report.alone) for text in figures[router]}
    rows.append([f"{router} - better head", *(f"{figures[router][text] - tau:+.2f}" for text, tau in better.items())])
    title = "mean acceptance length (tokens per verdict, bonus included)"
    return table(title, ("way", *figures[router]), rows, caption=OVER_PROMPTS)


def speed_table(report: RoutingReport) -> ResultTable:
    """Build a row per way: tokens per second by kind of text (the report's table 4), and over all against plain."""
    comparison = report.comparison
    families = list(dict.fromkeys(prompt.family for prompt in comparison.prompts))
    rows = []
    for way in (PLAIN, *comparison.drafters):
        speed = comparison.speeds[way]
        rates = [f"{_tokens_per_s(comparison, way, family):.0f}" for family in families]
        overall = plus_minus(speed.tokens_per_s, speed.tokens_per_s_ci95, 0)
        rows.append([way, *rates, overall, plus_minus(speed.speedup, speed.speedup_ci95, 2)])
    return table("tokens per second", ("way", *families, ALL, "x plain"), rows, caption=OVER_PROMPTS)


def _tokens_per_s(comparison: Comparison, way: str, family: str) -> float:
    """Return the median over the prompts of a family, then over the repetitions."""
    asked = [prompt for prompt in comparison.prompts if prompt.family == family]
    runs = range(comparison.repetitions)
    return median_of_medians([[one.tokens / one.seconds[way][run] for one in asked] for run in runs]) or 0.0


def cost_table(report: RoutingReport) -> ResultTable:
    counted = ("trees/1000 tokens", "extra trees", "passes/1000 tokens")
    columns = ("way", *counted, "skipped", "draft ms a cycle", "sent")
    rows = [
        [
            way,
            f"{cost.drafts_per_1000_tokens:.0f}",
            f"{cost.extra_drafts:+.0%}",
            f"{cost.passes_per_1000_tokens:.0f}",
            f"{cost.skipped:.0%}",
            plus_minus(cost.draft_ms, cost.draft_ms_ci95, 2),
            " / ".join(f"{share:.0%}" for share in cost.shares.values()),
        ]
        for way, cost in report.costs.items()
    ]
    return table("what it takes to draft", columns, rows)


def confidence_table(report: RoutingReport) -> ResultTable:
    """Build a row per way: confidence of accepted and of rejected tokens (the report's table 3)."""
    rows = [
        [
            way,
            f"{cost.confidence.accepted:.3f}",
            f"{cost.confidence.rejected:.3f}",
            f"{cost.confidence.accepted - cost.confidence.rejected:+.3f}",
            f"{cost.accepted_tokens} / {cost.rejected_tokens}",
        ]
        for way, cost in report.costs.items()
    ]
    columns = ("way", "accepted", "rejected", "difference", "tokens, accepted / rejected")
    return table("probability of a drafted token's path, according to its head", columns, rows)
