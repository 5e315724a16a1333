"""One run of a scenario: every variant answers the same prompts in turn.

What the machine or the link does at a moment so affects all variants alike. Every run has new sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from outrider_bench.core.prompts import Question
from outrider_bench.network.first_token import FirstToken
from outrider_bench.network.link_endpoint import LinkEndpoint
from outrider_bench.network.metrics import VariantMetrics, variant_metrics
from outrider_bench.network.pings import Pinger, PingStats
from outrider_bench.network.timed_answer import TimedAnswer, ask
from outrider_bench.network.variants import SERVER_DRAFT, STREAM, ModeVariant
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_proto.errors import Refusal, UsageError

PINGS = 10  # before every prompt
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """Metrics by variant, the number of answers that differ from the stream's, and first-token times."""

    metrics: Mapping[str, VariantMetrics]
    mismatches: Mapping[str, int]
    round_trips: PingStats
    first_tokens: Mapping[str, FirstToken] = field(default_factory=dict)

    def ratio_to_stream(self, variant: str) -> float | None:
        mine, theirs = self.metrics[variant].tokens_per_second, self.metrics[STREAM].tokens_per_second
        return mine / theirs if mine is not None and theirs else None


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts that every run asks; the answer to `warm_up` is not counted."""

    warm_up: Question
    asked: Sequence[Question]
    models: LocalModels


async def available_variants(
    variants: Sequence[ModeVariant], prompt_set: PromptSet, config: ClientConfig
) -> tuple[list[ModeVariant], dict[str, str]]:
    """Return the variants that client and server support, and why a control is not among them.

    Raises what a variant other than a control raises.
    """
    taken, missing = [], {}
    for variant in variants:
        try:
            async with AsyncExitStack() as stack:
                await _warm_client(variant, prompt_set, config, stack)
        except (UsageError, Refusal) as error:
            if variant.name != SERVER_DRAFT:
                raise
            missing[variant.name] = str(error)
        else:
            taken.append(variant)
    return taken, missing


async def run_once(
    variants: Sequence[ModeVariant],
    prompt_set: PromptSet,
    config: ClientConfig,
    endpoint: LinkEndpoint,
    number: int,
    step: Callable[[], None],
) -> ScenarioRun:
    """Answer all prompts with all variants; `number` counts the runs."""
    records: dict[str, list[TimedAnswer]] = {variant.name: [] for variant in variants}
    async with AsyncExitStack() as stack:
        clients = {variant.name: await _warm_client(variant, prompt_set, config, stack) for variant in variants}
        open_frame = prompt_set.models.open_frame(config.codec)
        pinger = await stack.enter_async_context(Pinger(endpoint.address, open_frame, time.perf_counter))
        for place, question in enumerate(prompt_set.asked):
            # R is measured between the answers, under the conditions that they have.
            await pinger.ping(PINGS)
            # Whoever comes first may find caches cold: every variant does in turn.
            for name in _rotated(list(clients), place + number):
                answer = await ask(clients[name], question.prompt, endpoint.traffic, time.perf_counter)
                records[name].append(answer)
                step()
        return _scenario_run(variants, records, PingStats.of(pinger.times_ms))


async def _warm_client(
    variant: ModeVariant, prompt_set: PromptSet, config: ClientConfig, stack: AsyncExitStack
) -> AsyncClient:
    """Return a client with a session of its own that has answered something."""
    client = AsyncClient(variant.configured(config), models=prompt_set.models)
    await stack.enter_async_context(client)
    await client.complete(prompt_set.warm_up.prompt, max_new_tokens=WARM_UP_TOKENS)
    return client


def _scenario_run(
    variants: Sequence[ModeVariant], records: Mapping[str, Sequence[TimedAnswer]], trips: PingStats
) -> ScenarioRun:
    expected = [record.token_ids for record in records[STREAM]]
    differing = {
        name: sum(mine.token_ids != theirs for mine, theirs in zip(answers, expected, strict=True))
        for name, answers in records.items()
    }
    metrics = {
        variant.name: variant_metrics(records[variant.name], trips.mean_ms, bounded=variant.waits_for_verdicts)
        for variant in variants
    }
    first_tokens = {name: FirstToken.of(answers, records[STREAM]) for name, answers in records.items()}
    return ScenarioRun(metrics, differing, trips, first_tokens)


def _rotated(names: Sequence[str], by: int) -> list[str]:
    """Rotate the names, so that another one comes first each time."""
    first = by % len(names)
    return [*names[first:], *names[:first]]
