"""An answer from its first token to its last, through any number of outages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from outrider_client.connection.session import retry_after_s
from outrider_client.generation.generation import Generation
from outrider_client.generation.modes import LOOPS, auto, offline
from outrider_proto.errors import TRANSIENT_REASONS, LinkError, Reason, Refusal

ModeLoop = Callable[[Generation], Awaitable[None]]


async def run_generation(answer: Generation) -> None:
    """Until the answer is finished. Raises Refusal, or LinkError when there is no link to begin with."""
    match answer.config.mode:
        case "offline":
            await offline(answer)
            answer.finish_offline()
        case "auto":
            await _run(answer, auto)
        case mode:
            await _run(answer, LOOPS[mode])


async def _run(answer: Generation, mode: ModeLoop) -> None:
    await set_out(answer)
    while not answer.finished:
        try:
            await catch_up(answer)
            if not answer.finished:
                await mode(answer)
        except (LinkError, Refusal) as error:
            if not is_link_failure(error):
                raise
            await run_offline(answer, error)


async def set_out(answer: Generation) -> None:
    """Have a link, unless there was one before or the caller lets the drafter begin."""
    try:
        await answer.session.connect()
    except LinkError:
        if answer.session.limits is None and not answer.config.offline_start:
            raise


async def catch_up(answer: Generation) -> None:
    """After an outage: let what the drafter wrote stand, or have the target judge it. Raises LinkError."""
    if answer.config.on_reconnect == "keep":
        answer.keep_tail()
    while answer.has_tail and not answer.finished:
        verdict = await answer.verify_tail()
        answer.commit(verdict)
    answer.caught_up()


async def run_offline(answer: Generation, error: Exception) -> None:
    """The drafter writes on while the session tries to come back; ends the answer when it cannot in time."""
    await answer.lose_link(error)
    if answer.makes_no_progress:
        await offline(answer)
        answer.finish_offline()
        return
    reconnecting = asyncio.create_task(answer.session.reconnect(retry_after_s(error)), name="outrider reconnect")
    try:
        await offline(answer, reconnecting.done)
        await asyncio.wait({reconnecting}, timeout=answer.patience_s)
    finally:
        reconnecting.cancel()
        await asyncio.gather(reconnecting, return_exceptions=True)
    if reconnecting.cancelled():
        answer.finish_offline()
    else:
        reconnecting.result()


def is_link_failure(error: LinkError | Refusal) -> bool:
    """A server that goes away on purpose is as gone as one that does not; and so is one that asks us to wait."""
    # A full server is waited for while connecting only, not in the middle of an answer.
    return isinstance(error, LinkError) or error.reason in TRANSIENT_REASONS - {Reason.SERVER_FULL}
