"""The mode that is fastest as far as is known, and another one as soon as that is: see controller/."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from outrider_client.controller.decision import OnlineMode
from outrider_client.generation.generation import Answer
from outrider_client.generation.modes.draft_ahead import pipelined, proactive
from outrider_client.generation.modes.server_draft import server_draft
from outrider_client.generation.modes.stop_and_wait import stop_and_wait
from outrider_client.generation.modes.stream import stream

LOOPS: Mapping[OnlineMode, Callable[[Answer], Awaitable[None]]] = {
    "stream": stream,
    "server-draft": server_draft,
    "stop-and-wait": stop_and_wait,
    "proactive": proactive,
    "pipelined": pipelined,
}


async def auto(answer: Answer) -> None:
    """Until the answer is finished. Raises LinkError."""
    while not answer.finished:
        await LOOPS[answer.decide()](answer)
