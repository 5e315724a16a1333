"""One answer collected from its events: tokens, cycles, statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from outrider_client.async_client import AsyncClient
from outrider_client.core.events import Committed, Cycle, Finished, RolledBack, Unverified
from outrider_client.core.statistics import Statistics
from outrider_proto.frames import Draft


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """New tokens, the cycles after the prompt's own, and the statistics.

    A cycle may have had nothing to draft.
    """

    token_ids: tuple[int, ...]
    cycles: tuple[Cycle, ...]
    statistics: Statistics


IsWhole = Callable[[Sequence[int]], bool]  # of an answer that has no end token


async def gather(
    client: AsyncClient, prompt: Sequence[int], is_whole: IsWhole = lambda answer: False, **overrides: Any
) -> AnswerRecord:  # Any: ClientConfig's fields
    """Run one answer until it ends or is whole, and collect its events."""
    tokens: list[int] = []
    cycles: list[Cycle] = []
    statistics = Statistics()
    async with aclosing(client.generate(prompt, **overrides)) as events:
        async for event in events:
            match event:
                case Committed(tokens=new) | Unverified(tokens=new):
                    tokens += new
                case RolledBack(count=count):
                    del tokens[len(tokens) - count :]
                # The prompt's own cycle comes before any token, and has no draft to judge.
                case Cycle(request=Draft()) if tokens:
                    cycles.append(event)
                case Finished():
                    statistics = event.statistics
            if is_whole(tokens):
                break
    return AnswerRecord(tuple(tokens), tuple(cycles), statistics)


def mean_acceptance_length(cycles: Sequence[Cycle]) -> float:
    """Return the tokens committed per verdict, bonus included; 0 without cycles."""
    tokens = sum(len(c.verdict.path) + (c.verdict.bonus is not None) for c in cycles)
    return tokens / len(cycles) if cycles else 0.0
