"""The drafter alone. What it writes is unverified."""

from __future__ import annotations

from collections.abc import Callable

from outrider_client.generation.generation import Answer


async def offline(answer: Answer, is_over: Callable[[], bool] = lambda: False) -> None:
    """Until the outage is over, the drafter has nothing left to say, or it has said as much as it may."""
    limit = answer.config.offline_limit
    num_written = 0
    while answer.can_write_alone and num_written != limit and not is_over():
        await answer.write_alone()
        num_written += 1
