"""Hands a long prompt over: the server writes until the drafter has, or soon will have, the prompt's features."""

from __future__ import annotations

from outrider_client.controller.measurements import SPLIT
from outrider_client.core.config import ClientConfig
from outrider_client.generation.context import GenerationContext
from outrider_client.generation.requests import RequestTracker


class PromptHandover:
    """Knows which features a draft of this answer needs, and waits for them."""

    def __init__(self, config: ClientConfig, context: GenerationContext, requests: RequestTracker) -> None:
        self._config = config
        self._session = context.session
        self._transcript = context.transcript
        self._drafting = context.drafting
        self._requests = requests
        self._controller = context.controller

    @property
    def should_decode_first(self) -> bool:
        """Return whether the server should decode alone while the prompt's features are on their way."""
        drafting = self._drafting
        if (
            not self._config.opening
            or drafting is None
            or not drafting.tap.fingerprint
            or drafting.tap.newest_only
            or self._transcript.num_new_tokens
        ):
            return False
        return self._controller.should_decode_first(self._num_missing, self._session.rtt)

    @property
    def has_features(self) -> bool:
        return self._drafting is None or self._num_missing <= 0

    async def wait(self) -> bool:
        """Wait for the prompt's features or the next verdict; return whether drafting can start. Raises LinkError.

        It can if the features have arrived, or will have by the time that the server has stopped decoding.
        """
        await self._requests.rows_or_verdict(self._can_start, self._config.timeouts.verdict_s)
        return self._can_start()

    async def await_features(self) -> None:
        """Wait for the features without which the next draft should not be made: the prompt's, or the newest too."""
        if self._waits_for_newest or not self.has_features:
            await self._requests.receive_rows(self._config.timeouts.features_s)

    @property
    def _num_missing(self) -> int:
        return self._transcript.prompt_len - (0 if self._drafting is None else self._drafting.num_features)

    def _can_start(self) -> bool:
        return self.has_features or self._controller.arrive_within_rtt(self._num_missing, self._session.rtt)

    @property
    def _waits_for_newest(self) -> bool:
        if self._drafting is None:
            return False
        chosen, choice = self._config.wait_for_features, self._controller.choice
        if chosen is None and choice is not None and choice.mode in SPLIT:
            return choice.wait_for_features
        return not self._drafting.stale_tolerant if chosen is None else chosen
