"""One run of a scenario: every variant answers the same prompts, in an order drawn at random for each.

What the machine or the link does at a moment so affects all variants alike. Every run has new sessions.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Self

from outrider_bench.core.prompts import Question
from outrider_bench.network.link_endpoint import LinkEndpoint, Pinger, PingStats, pings_before_each
from outrider_bench.network.metrics import VariantMetrics, variant_metrics
from outrider_bench.network.timed_answer import AnswerSlot, TimedAnswer, ask
from outrider_bench.network.variants import SERVER_DRAFT, STREAM, ModeVariant
from outrider_client.async_client import AsyncClient
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_proto.errors import Refusal, UsageError

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """Metrics by variant, and the number of answers that differ from the stream's.

    `answers` by variant are those that the metrics come from, in the order of the prompts; intervals need them.
    """

    metrics: Mapping[str, VariantMetrics]
    mismatches: Mapping[str, int]
    round_trips: PingStats
    answers: Mapping[str, Sequence[TimedAnswer]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        variants: Sequence[ModeVariant],
        answers: Mapping[str, Sequence[TimedAnswer]],
        round_trips: PingStats,
        expected: Sequence[tuple[int, ...]] | None = None,
    ) -> Self:
        """Compute a run's figures; `expected` are the right answers, the stream's unless given."""
        if expected is None:
            expected = [record.token_ids for record in answers.get(STREAM, ())]
        return cls(
            {
                variant.name: variant_metrics(
                    answers[variant.name], round_trips.mean_ms, bounded=variant.waits_for_verdicts
                )
                for variant in variants
            },
            {
                name: sum(mine.token_ids != theirs for mine, theirs in zip(given, expected, strict=bool(expected)))
                for name, given in answers.items()
            },
            round_trips,
            answers,
        )

    def ratio_to_stream(self, variant: str) -> float | None:
        mine, theirs = self.metrics[variant].tokens_per_second, self.metrics[STREAM].tokens_per_second
        return mine / theirs if mine is not None and theirs else None

    def ratios_to_token(self, variant: str, number: int) -> list[float]:
        """Return the times to token `number` as shares of the stream's, by prompt; shorter answers are left out."""
        mine = self.answers.get(variant, ())
        pairs = zip(mine, self.answers.get(STREAM) or mine, strict=True)
        times = ((one.ms_to_token(number), its.ms_to_token(number)) for one, its in pairs)
        return [one / its for one, its in times if one is not None and its]

    @property
    def ideal_stream(self) -> float | None:
        """Tokens per second of a stream without anything between its passes: 1000 / T_v."""
        verify_ms = self.metrics[STREAM].verify_ms if STREAM in self.metrics else None
        return 1e3 / verify_ms if verify_ms else None

    def at_places(self, variants: Sequence[ModeVariant], places: Sequence[int]) -> Self:
        """Return the same run with the prompts at these places only."""
        chosen = {name: [given[place] for place in places] for name, given in self.answers.items()}
        return type(self).of(variants, chosen, self.round_trips)


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
    missing: Sequence[AnswerSlot],
) -> AsyncGenerator[tuple[AnswerSlot, Sequence[float], TimedAnswer], None]:
    """Ask for the missing answers of a run in their order; yield each with the pings before it."""
    count, most_s = pings_before_each(len(prompt_set.asked) * len(variants))
    async with AsyncExitStack() as stack:
        clients = {variant.name: await _warm_client(variant, prompt_set, config, stack) for variant in variants}
        open_frame = prompt_set.models.open_frame(config.codec)
        pinger = await stack.enter_async_context(Pinger(endpoint.address, open_frame, time.perf_counter))
        for slot in missing:
            # R is measured between the answers, under the conditions that they have.
            pings_ms = await pinger.ping(count, most_s)
            client, prompt = clients[slot.way], prompt_set.asked[slot.place].prompt
            answer = await ask(client, prompt, endpoint.traffic, time.perf_counter)
            # The server keeps no prefixes for others here, but this session has the prompt now.
            again = await ask(client, prompt, endpoint.traffic, time.perf_counter, max_new_tokens=1)
            yield slot, pings_ms, replace(answer, warm_ms=again.ttft_ms)


def slots_of_run(variants: Sequence[ModeVariant], prompts: int, seed: int, run: int) -> list[AnswerSlot]:
    """Return the answers of a run in their order: the prompts in turn, the variants shuffled for each.

    Whoever follows a certain variant, or comes first, may have it easier: over many prompts all do.
    """
    slots = []
    for place in range(prompts):
        names = [variant.name for variant in variants]
        random.Random(f"{seed}/{run}/{place}").shuffle(names)
        slots += [AnswerSlot(run, place, way, order) for order, way in enumerate(names)]
    return slots


async def _warm_client(
    variant: ModeVariant, prompt_set: PromptSet, config: ClientConfig, stack: AsyncExitStack
) -> AsyncClient:
    """Return a client with a session of its own that has answered something."""
    client = AsyncClient(variant.configured(config), models=prompt_set.models)
    await stack.enter_async_context(client)
    await client.complete(prompt_set.warm_up.prompt, max_new_tokens=WARM_UP_TOKENS)
    return client
