"""The server drafts beside its target and streams what stands, blind to the round trip. The client's own drafter reads
along with features, to take over in an outage."""

from __future__ import annotations

from outrider_client.generation.generation import Answer


async def server_draft(answer: Answer) -> None:
    """Until the answer is finished, or another mode is better. Raises LinkError, or UsageError where the server does
    not offer it."""
    answer.enters("server-draft")
    answer.ask_decode(answer.plans.of_server(), features=not answer.is_auto or answer.affords_features)
    while answer.goes_on:
        verdict = await answer.next_verdict()
        answer.commit(verdict)
        await answer.warm_drafter()
    await answer.stop_decode()
