"""The control: the target decodes alone, one token a pass. The drafter only reads along, to take over in an outage;
under `auto`, on a link with room for them, it is sent the features, so that it can take over with a link as well."""

from __future__ import annotations

from outrider_client.generation.generation import Answer


async def stream(answer: Answer) -> None:
    """Until the answer is finished, or another mode is better. Raises LinkError."""
    answer.enters("stream")
    answer.ask_decode(features=answer.affords_features)
    while answer.goes_on:
        verdict = await answer.next_verdict()
        answer.commit(verdict)
        await answer.warm_drafter()
    await answer.stop_decode()
