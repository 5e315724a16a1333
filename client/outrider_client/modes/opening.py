"""How an answer to a long prompt begins: its features take longer than a round trip; meanwhile the server writes alone.

server   prompt  1  2  3  4  5
client           1  2  3  4  5 | draft ...
features    fffffffffffff
"""

from __future__ import annotations

from outrider_client.answer import Answer


async def opening(answer: Answer) -> None:
    """Until the drafter has the prompt's features, if that is worth it at all. Raises LinkError."""
    if not answer.should_open:
        return
    answer.ask_decode(features=True)
    while not answer.finished and not answer.has_prompt_features:
        answer.commit(await answer.next_verdict())
    await answer.stop_decode()
