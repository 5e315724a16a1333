"""The control: the target decodes alone, one token a pass. The drafter only reads along, to take over in an outage."""

from __future__ import annotations

from outrider_client.answer import Answer


async def stream(answer: Answer) -> None:
    """Until the answer is finished. Raises LinkError."""
    answer.ask_decode()
    while not answer.finished:
        verdict = await answer.next_verdict()
        answer.commit(verdict)
        await answer.warm_drafter()
