"""Drafting while verdicts are under way: with one draft in flight `proactive`, with more `pipelined`.

proactive    draft ------> verdict    the draft for this outcome was made meanwhile: it leaves at once
               outcomes drafted for
pipelined    draft 1 ------------> verdict 1
                  draft 2 ------------> verdict 2     on the likeliest outcome of draft 1; passed over by the server
                       draft 3 ...                    if that did not come true, and one for the outcome that did
                                                      was kept ready here
"""

from __future__ import annotations

from outrider_client.generation.generation import Answer
from outrider_client.generation.in_flight import Flights
from outrider_client.generation.modes.opening import opening


async def proactive(answer: Answer) -> None:
    """Until the answer is finished, or another mode is better. Raises LinkError."""
    answer.enters("proactive")
    await _ahead(answer, 1)


async def pipelined(answer: Answer) -> None:
    """As proactive."""
    answer.enters("pipelined")
    await _ahead(answer, answer.num_in_flight)


async def _ahead(answer: Answer, width: int) -> None:
    """With `width` drafts in flight."""
    await opening(answer)
    flights, verdict = Flights(answer, width), None
    try:
        while answer.goes_on:
            if verdict is not None:
                await flights.follow(verdict)
            if not flights.any:
                await flights.set_out()
            verdict = await flights.next_verdict()
            answer.commit(verdict)
    finally:
        await flights.close()
