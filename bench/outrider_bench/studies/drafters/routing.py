"""Routing between heads: each head alone, then both, with and without the gate, in sequence and batched.

Every answer is checked against the target's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outrider_bench.core.acceptance import acceptance_by_family
from outrider_bench.core.answer_record import AnswerRecord, gather, mean_acceptance_length
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.progress import ProgressCounter, Step
from outrider_bench.core.prompts import Question, questions
from outrider_bench.core.reference_answers import plain_answers
from outrider_bench.core.tables import ResultTable, table
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
    """Results over all answers; trees and passes are counted as in HeadUse.

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
    directory: Path, heads: Sequence[str], gate: float, per_family: int, limit: int, step: Step
) -> dict[str, RoutingResult]:
    """Ask the target in `directory` held-out questions, with each of the named heads alone and with both routed."""
    sources = [drafter_source(head) for head in heads]
    for source in sources:
        open_drafter(DrafterSource.parse(source))  # raises before the target has answered everything
    asked = questions(LocalModels.load(ClientConfig(target=directory, drafter=NO_DRAFTER)), per_family)
    target = Target.load(str(directory))
    expected = plain_answers(target, asked, limit, step)
    variants = routing_variants(sources, gate)
    return await measure_variants(variants, stop_and_wait_config(target=directory), target, asked, expected, step)


async def measure_variants(
    compared: Mapping[str, RoutingVariant],
    config: ClientConfig,
    target: Target,
    asked: Sequence[Question],
    expected: Sequence[tuple[int, ...]],
    step: Step,
) -> dict[str, RoutingResult]:
    """Answer all questions with every variant; `expected` also limit the lengths."""
    results = {}
    for name, variant in compared.items():
        first, *others = variant.heads
        chosen = replace(config, drafter=first, other_heads=tuple(others), routing=variant.routing or Routing())
        assert chosen.target is not None
        counter = ProgressCounter(step, name, len(asked))
        answers = []
        async with in_process(Path(chosen.target), chosen, target) as pair, pair.client() as client:
            for question, tokens in zip(asked, expected, strict=True):
                answers.append(await gather(client, question.prompt, max_new_tokens=len(tokens)))
                counter()
        results[name] = _result(asked, answers, expected)
    return results


def _result(
    asked: Sequence[Question], answers: Sequence[AnswerRecord], expected: Sequence[tuple[int, ...]]
) -> RoutingResult:
    uses = [answer.statistics.heads for answer in answers]
    tokens = sum(len(answer.token_ids) for answer in answers)
    cycles = {name: sum(use.cycles[name] for use in uses) for name in uses[0].cycles}
    num_cycles, drafts = sum(cycles.values()), sum(use.drafts for use in uses)
    draft_ms = sum(answer.statistics.split_ms.draft * len(answer.token_ids) for answer in answers)
    return RoutingResult(
        tau=acceptance_by_family(asked, [answer.cycles for answer in answers]),
        overall=mean_acceptance_length([cycle for answer in answers for cycle in answer.cycles]),
        mismatches=sum(answer.token_ids != tokens for answer, tokens in zip(answers, expected, strict=True)),
        tokens=tokens,
        cycles=num_cycles,
        drafts_per_1000_tokens=drafts * 1000 / tokens,
        passes_per_1000_tokens=sum(use.passes for use in uses) * 1000 / tokens,
        extra_drafts=drafts / num_cycles - 1,
        skipped=sum(use.gate_skips for use in uses) / num_cycles,
        draft_ms=draft_ms / num_cycles,
        shares={name: count / num_cycles for name, count in cycles.items()},
        confidence=_weighted_means([(use, use.confidence) for use in uses]),
        entropy=_weighted_means([(use, use.entropy) for use in uses]),
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
    categories = list(next(iter(results.values())).tau)
    rows = [
        [name, *(f"{result.tau[category]:.2f}" for category in categories), f"{result.overall:.2f}"]
        for name, result in results.items()
    ]
    return table("mean acceptance length (tokens per verdict, bonus included)", ("way", *categories, "all"), rows)


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
            f"{result.draft_ms:.2f}",
            " / ".join(f"{share:.0%}" for share in result.shares.values()),
            f"{result.mismatches}",
        ]
        for name, result in results.items()
    ]
    return table("what it takes to draft", columns, rows)
