"""Runs a generation from its first token to its last, through any number of outages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from outrider_client.generation.generation import Generation
from outrider_client.generation.modes import LOOPS, auto, offline
from outrider_client.generation.outage import IsOver, is_link_failure, reconnect
from outrider_proto.errors import LinkError, Refusal

ModeLoop = Callable[[Generation], Awaitable[None]]


async def run_generation(generation: Generation) -> None:
    """Write the whole answer. Raises Refusal, or LinkError when no server can be reached at the start."""
    match generation.config.mode:
        case "offline":
            await offline(generation)
            generation.finish_offline()
        case "auto":
            await _run(generation, auto)
        case mode:
            await _run(generation, LOOPS[mode])


async def _run(generation: Generation, mode: ModeLoop) -> None:
    await generation.session.start(offline_start=generation.config.offline_start)
    while not generation.finished:
        try:
            await catch_up(generation)
            if not generation.finished:
                await mode(generation)
        except (LinkError, Refusal) as error:
            if not is_link_failure(error):
                raise
            await run_offline(generation, error)


async def catch_up(generation: Generation) -> None:
    """Keep or verify the tokens that were written offline. Raises LinkError."""
    if generation.config.on_reconnect == "keep":
        generation.keep_tail()
    while generation.has_tail and not generation.finished:
        verdict = await generation.verify_tail()
        generation.commit(verdict)
    generation.caught_up()


async def run_offline(generation: Generation, error: Exception) -> None:
    """Write offline while the session reconnects; finish the answer if it cannot reconnect in time."""
    await generation.lose_link(error)
    if generation.makes_no_progress:
        await offline(generation)
        generation.finish_offline()
        return

    async def write(is_over: IsOver) -> None:  # asked between tokens, so a returning link waits for one at most
        await offline(generation, is_over)

    if not await reconnect(generation.session, generation.config, error, write):
        generation.finish_offline()
