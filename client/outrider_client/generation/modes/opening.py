"""How an answer to a long prompt begins: its features take longer than a round trip; meanwhile the server writes alone.

server   prompt  1  2  3  4  5  6
client           1  2  3  4  5  6 | draft ...
features    fffffffffffffffffffff
                       ^ what is left of them takes a round trip, and so does stopping the server
"""

from __future__ import annotations

from outrider_client.generation.generation import Answer


async def opening(answer: Answer) -> None:
    """Until the drafter has the prompt's features or is about to, if that is worth it at all. Raises LinkError."""
    if not answer.should_open:
        return
    answer.ask_decode(features=True)
    while not answer.finished and not await answer.features_come_first():
        answer.commit(await answer.next_verdict())
    await answer.stop_decode()
