"""Writes the drafter's answer to a private prompt.

Nothing here can send: neither session nor transcript is in reach. Keep that so, and this a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Event, Private, Warned
from outrider_client.core.statistics import Meter
from outrider_client.drafting.drafting_thread import AsyncDrafter
from outrider_client.models.local_models import LocalModels
from outrider_client.models.private_tokens import PrivateSplit
from outrider_client.text.detokenizer import Detokenizer
from outrider_client.text.repetition import repeats_a_phrase
from outrider_proto.errors import UsageError


class LocalWriter:
    """Writes one answer with the drafter alone."""

    def __init__(
        self,
        models: LocalModels,
        drafting: AsyncDrafter,
        config: ClientConfig,
        meter: Meter,
        clock: Callable[[], float],
        emit: Callable[[Event], None],
    ) -> None:
        self.num_new_tokens = 0
        self._models = models
        self._drafting = drafting
        self._config = config
        self._meter = meter
        self._clock = clock
        self._emit = emit
        self._text = Detokenizer(models.decode)

    async def write(self, prompt: PrivateSplit) -> str:
        """Write the whole answer and return the text held back as an incomplete character.

        Raises UsageError if the drafter cannot continue the prompt at all.
        """
        tokens = list(prompt.whole)
        rules = self._models.rules_of(self._config.for_answer_from(len(tokens)).sampling.rules)
        while True:
            if self.num_new_tokens >= self._config.drafter_limit or len(tokens) >= self._models.max_context:
                self._emit(Warned(f"the answer is cut after {self.num_new_tokens} tokens"))
                break
            token = await self._drafting.write(tokens, self._config.sampling, rules)
            if token is None:
                break
            tokens.append(token)
            # Before the check: the end-of-sequence token belongs to the answer, as in the server's.
            self._meter.tokens_arrived(self._clock())
            self._emit(Private(self.num_new_tokens, (token,), self._text.push((token,))))
            self.num_new_tokens += 1
            if token in self._models.eos_token_ids:
                break
            # Of JSON only the whole is of use, however much space stands in it.
            if not self._config.sampling.rules.json_schema and repeats_a_phrase(tokens[len(prompt.whole) :]):
                self._emit(Warned("the drafter repeats itself: the answer is cut"))
                break
        if not self.num_new_tokens:
            raise UsageError(
                "the drafter cannot continue private text: name another one (moa, eagle, independent), or"
                " choose privacy=placeholder"
            )
        return self._text.finish()
