"""One answer in one process, cycle by cycle: drafted, accepted, committed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from outrider_bench.core.answer_record import gather, mean_acceptance_length
from outrider_bench.core.pair import InProcessPair, in_process, stop_and_wait_config
from outrider_bench.core.prompts import QuestionSource
from outrider_client.core.events import Cycle
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.families.moa.family import TLI
from outrider_models.core.embedded import drafter_source
from outrider_proto.errors import UsageError, Violation
from outrider_proto.frames import Draft, Sampling
from outrider_server.engine.reference_decode import plain_greedy


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Settings of a trace; `plan=None` takes the drafter's own trees, `baseline` also runs the target alone."""

    target: Path
    drafter: DrafterSource
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    plan: TreePlan | None
    sampling: Sampling
    baseline: bool


async def trace(request: TraceRequest) -> dict[str, object]:
    """Return `family`, `output_ids`, `cycles` and `mean_acceptance_length`.

    With a baseline also `baseline_ids` and `matches_baseline`, which may be false with typical acceptance. Nodes are
    numbered as in DraftTree: the root is not among them, parent -1 is the root, depths count from 1. The prompt's own
    request is not a cycle. A cycle for which the drafter had nothing to draft has no nodes.
    """
    async with _pair(request) as pair:
        return await _traced(pair, request, request.prompt_ids)


def _pair(request: TraceRequest) -> AbstractAsyncContextManager[InProcessPair]:
    config = stop_and_wait_config(
        target=request.target,
        drafter=request.drafter,
        codec="float32",
        shape=request.plan,
        sampling=request.sampling,
        max_new_tokens=request.max_new_tokens,
    )
    return in_process(request.target, config)


async def trace_questions(request: TraceRequest, source: QuestionSource) -> dict[str, object]:
    """Return `questions`: what `trace` returns for each turn of a user's questions, with its name and category."""
    async with _pair(request) as pair:
        # Earlier turns are answered before the target serves.
        answer = partial(plain_greedy, pair.target)
        asked = source.per_family(pair.models, None, request.max_new_tokens, answer)
        traced = [await _traced(pair, request, question.prompt) for question in asked]
    named = [{"name": question.name, "category": question.family} for question in asked]
    return {"questions": [name | one for name, one in zip(named, traced, strict=True)]}


async def _traced(pair: InProcessPair, request: TraceRequest, prompt: Sequence[int]) -> dict[str, object]:
    assert pair.models.drafter is not None
    async with pair.client() as client:
        answer = await gather(client, prompt)
    report: dict[str, object] = {
        "family": pair.models.drafter.family,
        "output_ids": answer.token_ids,
        "cycles": [_as_dict(cycle) for cycle in answer.cycles],
        "mean_acceptance_length": mean_acceptance_length(answer.cycles),
    }
    if request.baseline:
        baseline = await _baseline(pair, request, prompt)
        report |= {"baseline_ids": baseline, "matches_baseline": answer.token_ids == baseline}
    return report


async def _baseline(pair: InProcessPair, request: TraceRequest, prompt: Sequence[int]) -> tuple[int, ...]:
    """Run the target alone: the plain loop, or for sampling one token per pass through the server."""
    # The plain loop is greedy: with sampling the server's stream is the reference, at the same seed.
    if not request.sampling.draws:
        return tuple(plain_greedy(pair.target, prompt, request.max_new_tokens))
    async with pair.client() as client:
        return (await gather(client, prompt, mode="stream")).token_ids


def _as_dict(cycle: Cycle) -> dict[str, object]:
    assert isinstance(cycle.request, Draft)
    tree = cycle.request.tree
    return {
        "root": cycle.request.root,
        "tokens": tree.tokens,
        "parents": tree.parents,
        "depths": tree.depths(),
        "accepted": cycle.verdict.path,
        "bonus": cycle.verdict.bonus,
    }


def read_source(drafter: str, tli: int | None) -> DrafterSource:
    source = DrafterSource.parse(drafter_source(drafter))
    if tli is None:
        return source
    if (given := source.options.get(TLI)) not in (None, tli):
        raise UsageError(f"tli={tli}, but drafter {drafter} has {given}: give only one")
    if tli < 0:
        raise UsageError(f"tli={tli}: need 0 or more")
    return replace(source, options=source.options.but(tli=tli))


def read_token_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"prompt-ids={text!r}: need token ids separated by commas") from None


def read_sampling(
    acceptance: str, temperature: float, top_k: int, top_p: float, **more: Any
) -> Sampling:  # Sampling's own
    try:
        match acceptance:
            case "greedy":
                return Sampling()
            case "sampling":
                return Sampling(temperature, top_k, top_p, **more)
            case "typical":
                return Sampling(temperature, top_k, top_p, acceptance="typical", **more)
    except Violation as error:
        raise UsageError(error.message) from None
    raise UsageError(f"acceptance={acceptance!r}: need greedy, sampling or typical")
