"""An answer from its first token to its last, through any number of outages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from outrider_client.connection.session import wait_asked_for_s
from outrider_client.generation.generation import Answer
from outrider_client.generation.modes.auto import LOOPS, auto
from outrider_client.generation.modes.offline import offline
from outrider_proto.errors import TRANSIENT_REASONS, LinkError, Reason, Refusal

ModeLoop = Callable[[Answer], Awaitable[None]]


async def ride(answer: Answer) -> None:
    """Until the answer is finished. Raises Refusal, or LinkError when there is no link to begin with."""
    match answer.config.mode:
        case "offline":
            await offline(answer)
            answer.finish_alone()
        case "auto":
            await _ride(answer, auto)
        case mode:
            await _ride(answer, LOOPS[mode])


async def _ride(answer: Answer, mode: ModeLoop) -> None:
    await set_out(answer)
    while not answer.finished:
        try:
            await catch_up(answer)
            if not answer.finished:
                await mode(answer)
        except (LinkError, Refusal) as error:
            if not is_links_fault(error):
                raise
            await ride_alone(answer, error)


async def set_out(answer: Answer) -> None:
    """Have a link, unless there was one before or the caller lets the drafter begin."""
    try:
        await answer.session.connect()
    except LinkError:
        if answer.session.limits is None and not answer.config.offline_start:
            raise


async def catch_up(answer: Answer) -> None:
    """After an outage: let what the drafter wrote stand, or have the target judge it. Raises LinkError."""
    if answer.config.on_reconnect == "keep":
        answer.keep_tail()
    while answer.has_tail and not answer.finished:
        verdict = await answer.verify_tail()
        answer.commit(verdict)
    answer.caught_up()


async def ride_alone(answer: Answer, error: Exception) -> None:
    """The drafter writes on while the session tries to come back; ends the answer when it cannot in time."""
    await answer.lose_link(error)
    if answer.is_in_vain:
        await offline(answer)
        answer.finish_alone()
        return
    reconnecting = asyncio.create_task(answer.session.reconnect(wait_asked_for_s(error)), name="outrider reconnect")
    try:
        await offline(answer, reconnecting.done)
        await asyncio.wait({reconnecting}, timeout=answer.patience_s)
    finally:
        reconnecting.cancel()
        await asyncio.gather(reconnecting, return_exceptions=True)
    if reconnecting.cancelled():
        answer.finish_alone()
    else:
        reconnecting.result()


def is_links_fault(error: LinkError | Refusal) -> bool:
    """A server that goes away on purpose is as gone as one that does not; and so is one that asks us to wait."""
    # A full server is waited for while connecting only, not in the middle of an answer.
    return isinstance(error, LinkError) or error.reason in TRANSIENT_REASONS - {Reason.SERVER_FULL}
