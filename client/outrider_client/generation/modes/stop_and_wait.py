"""The paper's loop: take the features, draft a tree, have it verified, let the verdict stand. A drafter that does as
well without the newest features drafts on at once (token-first)."""

from __future__ import annotations

from outrider_client.generation.generation import Answer
from outrider_client.generation.modes.opening import opening


async def stop_and_wait(answer: Answer) -> None:
    """Until the answer is finished, or another mode is better. Raises LinkError."""
    answer.enters("stop-and-wait")
    await opening(answer)
    while answer.goes_on:
        drafted = await answer.draft()
        verdict = await answer.verify(drafted)
        answer.commit(verdict)
