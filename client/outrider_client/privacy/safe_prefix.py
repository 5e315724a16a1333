"""Fetches the target's features of a private prompt's safe prefix. Knows nothing of the text after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider_client.core.config import ClientConfig
from outrider_client.drafting.drafting_thread import AsyncDrafter
from outrider_client.generation.instruments import Instruments
from outrider_client.generation.requests import RequestTracker
from outrider_client.generation.runner import is_link_failure, reconnect
from outrider_proto.errors import LinkError, Refusal
from outrider_proto.tree import DraftTree

if TYPE_CHECKING:
    from outrider_client.generation.context import GenerationContext

_MAX_TRIES = 16  # connections that open but bring no features
HUNG_UP = "hung up: a private answer is being written here"


class SafePrefix:
    """The features of one prefix, for the drafter that will continue it."""

    def __init__(
        self,
        context: GenerationContext,
        drafting: AsyncDrafter,
        config: ClientConfig,
        instruments: Instruments,
        safe: Sequence[int],
    ) -> None:
        self._config = config
        self._session = context.session
        self._transcript = context.transcript
        self._drafting = drafting
        self._client_drafting = context.drafting
        self._vocab_size = context.models.vocab_size
        self._requests = RequestTracker(context.session, context.transcript, drafting, instruments)
        self._safe = safe

    async def fetch(self) -> bool:
        """Fetch the features and hang up; return whether the drafter has all. Raises LinkError or Refusal."""
        try:
            if not self._safe or not self._drafting.tap.fingerprint:
                return True
            return self._config.mode != "offline" and await self._fetch_until_complete()
        except Exception:
            # Only here, not for later failures: what goes wrong with the private text must not show in the next Open.
            await self._session.reset()
            raise
        finally:
            # While the private answer is written nothing may be on the wire: even heartbeats and their end would tell
            # how long it is.
            if self._session.is_connected:
                await self._session.disconnect(HUNG_UP)

    async def _fetch_until_complete(self) -> bool:
        await self._session.start(offline_start=self._config.offline_start)
        for _ in range(_MAX_TRIES):
            try:
                await self._request_features()
            except (LinkError, Refusal) as error:
                if not is_link_failure(error):
                    raise
                await self._session.disconnect(str(error))
                if not await self._reconnects(error):
                    return False
            else:
                if self._drafting.num_features >= len(self._safe):
                    return True
                # The stream may have sent these rows to another drafter, and sends rows again only once.
                await self._session.disconnect(HUNG_UP)
                if not await self._reconnects():
                    return False
        return False

    async def _request_features(self) -> None:
        """Send an empty draft on the prefix and receive its features; the target's next token is not used."""
        timeouts = self._config.timeouts
        common = self._transcript.begin(self._safe, max_new_tokens=1)
        if self._client_drafting is not None:
            self._client_drafting.begin(common)
        self._requests.send(self._transcript.next_draft(DraftTree(), self._drafting.num_features))
        _, verdict = await self._requests.next_verdict(timeouts.verdict_s)
        self._transcript.apply(verdict, self._vocab_size)
        self._session.caught_up()
        await self._requests.receive_rows(timeouts.features_s)

    async def _reconnects(self, error: Exception | None = None) -> bool:
        self._requests.lost()
        return await reconnect(self._session, self._config, error)
