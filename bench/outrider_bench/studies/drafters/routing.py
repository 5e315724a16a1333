"""Routing between heads: each head alone, and both, with and without the gate, in sequence and batched.

All variants answer a prompt before the next one comes, in random order, after a warm-up. Every answer is checked
against the target's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from outrider_bench.core.acceptance import ALL, TauByText
from outrider_bench.core.answer_record import AnswerRecord, gather
from outrider_bench.core.bootstrap import Interval, ratio_interval
from outrider_bench.core.pair import COLD, in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import WARM_UP_TOKENS, AskedPrompts, Question, questions, warm_up_question
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.tables import OVER_PROMPTS, ResultTable, plus_minus, plus_minuses, table
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import NO_DRAFTER, ClientConfig
from outrider_client.core.head_statistics import AcceptedMeans, HeadUse
from outrider_client.models.local_models import LocalModels
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.load import open_drafter
from outrider_drafters.routing.rules import Routing
from outrider_models.core.embedded import drafter_source
from outrider_server.engine.target import Target


@dataclass(frozen=True, slots=True)
class RoutingVariant:
    """Heads, and how one of them is chosen; None for a head alone."""

    heads: tuple[str, ...]
    routing: Routing | None = None


@dataclass(frozen=True, slots=True)
class RoutingResult:
    """Results over all answers; trees and passes are counted as in HeadUse. All but `draft_ms` are counts.

    `tau` is by family. `extra_drafts` is a share: the routing report's routers take 1.0, which is +100 %.
    """

    tau: dict[str, float]
    overall: float
    mismatches: int
    tokens: int
    cycles: int
    drafts_per_1000_tokens: float
    passes_per_1000_tokens: float
    extra_drafts: float
    skipped: float  # share of cycles in which the gate skipped the other heads
    draft_ms: float  # a cycle
    shares: dict[str, float]
    confidence: AcceptedMeans
    entropy: AcceptedMeans
    tau_by_group: dict[str, float]
    tau_ci95: dict[str, Interval | None]  # as in TauByText
    draft_ms_ci95: Interval | None


def routing_variants(heads: Sequence[str], gate: float) -> dict[str, RoutingVariant]:
    """Name what is compared; `heads` are directories."""
    routings = {
        "confidence, one after another": Routing(batched=False),
        "confidence, one batch": Routing(),
        "entropy, one batch": Routing("entropy"),
        f"gate {gate:g}, one after another": Routing(gate=gate, batched=False),
        f"gate {gate:g}, one batch": Routing(gate=gate),
    }
    alone = {f"head {number}: {Path(head).name}": RoutingVariant((head,)) for number, head in enumerate(heads, start=1)}
    return alone | {name: RoutingVariant(tuple(heads), routing) for name, routing in routings.items()}


async def compare_variants(
    directory: Path, heads: Sequence[str], gate: float, per_family: int, limit: int, seed: int, step: Step
) -> dict[str, RoutingResult]:
    """Ask the target in `directory` held-out questions, with each of the named heads alone and with both routed.

    `seed` is that of the order.
    """
    sources = [drafter_source(head) for head in heads]
    for source in sources:
        open_drafter(DrafterSource.parse(source))  # raises before the target has answered everything
    models = LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER))
    prompts = AskedPrompts(questions(models, per_family), warm_up_question(models), seed=seed)
    target = Target.load(str(directory))
    expected = plain_answers(target, prompts.asked, limit, step)
    variants = routing_variants(sources, gate)
    return await measure_variants(variants, stop_and_wait_config(target=directory), target, prompts, expected, step)


async def measure_variants(
    compared: Mapping[str, RoutingVariant],
    config: ClientConfig,
    target: Target,
    prompts: AskedPrompts,
    expected: Sequence[tuple[int, ...]],
    step: Step,
) -> dict[str, RoutingResult]:
    """Answer all questions with every variant; `expected` also limit the lengths."""
    answers: dict[str, list[AnswerRecord]] = {name: [] for name in compared}
    counter = ProgressCounter(step, "routing", len(prompts) * len(compared))
    async with AsyncExitStack() as stack:
        clients = {}
        for name, variant in compared.items():
            clients[name] = await _client(variant, config, target, stack)
            await gather(clients[name], prompts.warm_up.prompt, max_new_tokens=WARM_UP_TOKENS)
        for place, name in prompts.order(compared):
            tokens = len(expected[place])
            answers[name].append(await gather(clients[name], prompts.asked[place].prompt, max_new_tokens=tokens))
            counter()
    return {name: _result(prompts.asked, given, expected) for name, given in answers.items()}


async def _client(variant: RoutingVariant, config: ClientConfig, target: Target, stack: AsyncExitStack) -> AsyncClient:
    """Return a client of the target in process, with a session of its own that meets every prompt cold."""
    first, *others = variant.heads
    chosen = replace(config, drafter=first, other_heads=tuple(others), routing=variant.routing or Routing())
    assert chosen.target is not None
    pair = await stack.enter_async_context(in_process(Path(chosen.target), chosen, target, COLD))
    return await stack.enter_async_context(pair.client())


def _result(
    asked: Sequence[Question], answers: Sequence[AnswerRecord], expected: Sequence[tuple[int, ...]]
) -> RoutingResult:
    uses = [answer.statistics.heads for answer in answers]
    tokens = sum(len(answer.token_ids) for answer in answers)
    cycles = {name: sum(use.cycles[name] for use in uses) for name in uses[0].cycles}
    num_cycles, drafts = sum(cycles.values()), sum(use.drafts for use in uses)
    draft_ms = [answer.statistics.split_ms.draft * len(answer.token_ids) for answer in answers]
    tau = TauByText.of(asked, [answer.cycles for answer in answers])
    return RoutingResult(
        tau=tau.by_family,
        overall=tau.overall,
        mismatches=sum(answer.token_ids != tokens for answer, tokens in zip(answers, expected, strict=True)),
        tokens=tokens,
        cycles=num_cycles,
        drafts_per_1000_tokens=drafts * 1000 / tokens,
        passes_per_1000_tokens=sum(use.passes for use in uses) * 1000 / tokens,
        extra_drafts=drafts / num_cycles - 1,
        skipped=sum(use.gate_skips for use in uses) / num_cycles,
        draft_ms=sum(draft_ms) / num_cycles,
        shares={name: count / num_cycles for name, count in cycles.items()},
        confidence=_weighted_means([(use, use.confidence) for use in uses]),
        entropy=_weighted_means([(use, use.entropy) for use in uses]),
        tau_by_group=tau.by_group,
        tau_ci95=tau.ci95,
        draft_ms_ci95=ratio_interval(draft_ms, [sum(use.cycles.values()) for use in uses]),
    )


def _weighted_means(splits: Sequence[tuple[HeadUse, AcceptedMeans]]) -> AcceptedMeans:
    """Return the means over all answers' tokens."""
    accepted = sum(use.accepted_tokens for use, _ in splits)
    rejected = sum(use.rejected_tokens for use, _ in splits)
    return AcceptedMeans(
        sum(split.accepted * use.accepted_tokens for use, split in splits) / max(accepted, 1),
        sum(split.rejected * use.rejected_tokens for use, split in splits) / max(rejected, 1),
    )


def routing_tau_table(results: Mapping[str, RoutingResult]) -> ResultTable:
    figures = {name: {**one.tau, **one.tau_by_group, ALL: one.overall} for name, one in results.items()}
    rows = [[name, *plus_minuses(figures[name], results[name].tau_ci95, 2)] for name in results]
    title = "mean acceptance length (tokens per verdict, bonus included)"
    return table(title, ("way", *next(iter(figures.values()))), rows, caption=OVER_PROMPTS)


def routing_cost_table(results: Mapping[str, RoutingResult]) -> ResultTable:
    counted = ("trees/1000 tokens", "extra trees", "passes/1000 tokens")
    columns = ("way", *counted, "skipped", "draft ms a cycle", "sent", "not exact")
    rows = [
        [
            name,
            f"{result.drafts_per_1000_tokens:.0f}",
            f"{result.extra_drafts:+.0%}",
            f"{result.passes_per_1000_tokens:.0f}",
            f"{result.skipped:.0%}",
            plus_minus(result.draft_ms, result.draft_ms_ci95, 2),
            " / ".join(f"{share:.0%}" for share in result.shares.values()),
            f"{result.mismatches}",
        ]
        for name, result in results.items()
    ]
    return table("what it takes to draft", columns, rows)
