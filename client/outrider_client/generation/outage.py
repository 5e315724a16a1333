"""Gets through an outage: what one is, how long it may last, and the way back. For open and for private prompts.

link fails -> disconnect -> reconnect, once or for as long as there is patience -> back, or the answer ends here
                            meanwhile the drafter writes
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from outrider_client.connection.session import ClientSession, retry_after_s
from outrider_client.core.config import ClientConfig
from outrider_proto.errors import LinkError, Reason, Refusal, is_transient

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
