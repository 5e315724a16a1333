"""Runs a generation from its first token to its last, through any number of outages.

link fails -> disconnect -> reconnect, once or for as long as there is patience -> back, or the answer ends here
                            meanwhile the drafter writes
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from outrider_client.connection.session import ClientSession, retry_after_s
from outrider_client.core.config import ClientConfig
from outrider_client.generation.generation import Generation
from outrider_client.generation.modes import LOOPS, auto, offline
from outrider_proto.errors import LinkError, Reason, Refusal, UsageError, is_transient

IsOver = Callable[[], bool]


def is_link_failure(error: LinkError | Refusal) -> bool:
    """Return whether to write on offline: the link failed, or the server is away or asks us to wait."""
    # A full server is waited for while connecting only, not in the middle of an answer.
    return is_transient(error) and not (isinstance(error, Refusal) and error.reason is Reason.SERVER_FULL)


async def reconnect(
    session: ClientSession,
    config: ClientConfig,
    error: Exception | None = None,
    meanwhile: Callable[[IsOver], Awaitable[None]] | None = None,
) -> bool:
    """Return whether a session that lost its link to `error` is back, after `meanwhile` and then some patience.

    `meanwhile` gets a function that tells whether the link is back already. Raises Refusal.
    """
    after_s = 0.0 if error is None else retry_after_s(error)
    reconnecting = asyncio.create_task(session.reconnect(after_s), name="outrider reconnect")
    try:
        if meanwhile is not None:
            await meanwhile(reconnecting.done)
        # At least one attempt, however little patience there is.
        await asyncio.wait({reconnecting}, timeout=max(config.wait_for_link_s, session.first_attempt_s))
    finally:
        reconnecting.cancel()
        await asyncio.gather(reconnecting, return_exceptions=True)
    if reconnecting.cancelled():
        return False
    reconnecting.result()
    return True


ModeLoop = Callable[[Generation], Awaitable[None]]


async def write_answer(generation: Generation, prompt: Sequence[int]) -> None:
    """Write the answer to a prompt. Raises Refusal, or LinkError when no server can be reached at the start."""
    generation.begin(prompt)  # outside the try: a prompt that is refused here leaves the session as it is
    try:
        await generation.session.set_sampling(generation.config.sampling)
        await run_generation(generation)
    except (asyncio.CancelledError, UsageError):
        generation.abandon()
        raise
    except Exception as error:
        if isinstance(error, Refusal) and error.reason is Reason.SERVER_FULL:
            generation.abandon()  # a full server keeps the session until there is a place for it
        else:
            # What the server holds is unknown now, so the next answer opens a session of its own.
            await generation.session.reset()
        raise


async def run_generation(generation: Generation) -> None:
    """Write the answer that has begun. Raises what `write_answer` does."""
    match generation.config.mode:
        case "offline":
            await offline(generation)
            generation.offline.check_has_written()
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
    """Keep or verify the tokens that were written offline, or by another target. Raises LinkError."""
    generation.distrust_other_target()
    if generation.config.on_reconnect == "keep":
        generation.keep_tail()
    while generation.has_tail and not generation.finished:
        verdict = await generation.verify_tail()
        generation.commit(verdict)
    generation.caught_up()


async def run_offline(generation: Generation, error: Exception) -> None:
    """Write offline while the session reconnects; finish the answer if it cannot reconnect in time."""
    await generation.lose_link(error)
    if generation.session.makes_no_progress(generation.config.wait_for_link_s):
        await offline(generation)
        generation.finish_offline()
        return

    async def write(is_over: IsOver) -> None:  # asked between tokens, so a returning link waits for one at most
        await offline(generation, is_over)
        if not is_over():
            generation.await_link()

    if not await reconnect(generation.session, generation.config, error, write):
        generation.finish_offline()
