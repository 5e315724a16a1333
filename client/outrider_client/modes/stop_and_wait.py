"""The paper's loop: draft a tree, have it verified, let the verdict stand, take the features, draft on."""

from __future__ import annotations

from outrider_client.answer import Answer


async def stop_and_wait(answer: Answer) -> None:
    """Until the answer is finished. Raises LinkError."""
    while not answer.finished:
        tree = await answer.grow_tree()
        verdict = await answer.verify(tree)
        answer.commit(verdict)
        if answer.config.wait_for_features:
            await answer.take_features()
