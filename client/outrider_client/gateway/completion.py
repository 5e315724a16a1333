"""One answer on its way to an app."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from typing import Literal

from outrider_client.async_client import AsyncClient
from outrider_client.core.config import Mode
from outrider_client.core.events import Committed, Event, Finished, RolledBack, Stats, Verified, Warned
from outrider_client.core.statistics import Statistics
from outrider_client.gateway.gateway import Gateway
from outrider_client.gateway.request_mapping import GenerationRequest
from outrider_client.gateway.text_stream import TextChunk, TextStream, UnverifiedPolicy
from outrider_client.models.local_models import LocalModels
from outrider_client.privacy.placeholders import Placeholders
from outrider_client.text.transcript import FinishReason
from outrider_proto.errors import LinkError, Reason, Refusal

AppReason = Literal["stop", "length"]
_WITH_STATS = (Committed, Verified, RolledBack)  # of a verdict, whose Stats follow at once


class GatewayCompletion:
    """Raises ApiError or OutriderError; an answer without a word for want of a link is a LinkError."""

    def __init__(self, gateway: Gateway, asked: GenerationRequest) -> None:
        self.asked = asked
        self.statistics = Statistics()
        self.warnings: list[str] = []
        self.drafter, self.models = gateway.models_for(asked)
        self._gateway = gateway
        manner = self._manner(asked.choices.get("mode", gateway.client.mode))
        self._outflow = TextStream(asked.stops, manner)
        self._sent = () if self._stays_here else _sent(self.models, asked)
        self.prompt_tokens = len(self._sent) or len(self.models.split(asked.prompt, raw=asked.raw).whole)
        on_reconnect = "keep" if manner == "keep" else "verify"
        self._choices = {**asked.choices, "max_new_tokens": self._limit(), "on_reconnect": on_reconnect}
        self._ended_by: FinishReason | None = None

    async def pieces(self) -> AsyncGenerator[TextChunk, None]:
        """What may go out, as it comes. Whoever stops listening closes it: that ends the answer and keeps the
        session."""
        arrived: asyncio.Queue[TextChunk | None] = asyncio.Queue()
        # A task of its own, which comes to its end in peace when the request is cancelled over and over.
        writing = self._gateway.own(self._write(arrived.put_nowait))
        writing.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (piece := await arrived.get()) is not None:
                yield piece
            writing.result()
        finally:
            writing.cancel()

    async def _write(self, put: Callable[[TextChunk], None]) -> None:
        started = time.perf_counter()
        async with self._gateway.pool.lend(self.drafter, self._sent, quiet=self._stays_here) as client:
            client.begin_conversation()  # the last request may have been somebody else's
            prompt = self.asked.prompt if self.asked.has_private else self._sent
            async with contextlib.aclosing(client.generate(prompt, **self._choices)) as events:
                async for event in events:
                    self._note(client, event)
                    for piece in self._outflow.take(event):
                        put(piece)
                    if self._outflow.stopped and not isinstance(event, _WITH_STATS):
                        break
        if self._ended_by == "link" and self._outflow.last_token is None:
            raise LinkError("the link is out, and the drafter cannot tell how this text goes on")
        self._count(time.perf_counter() - started)

    @property
    def finish_reason(self) -> AppReason:
        """In OpenAI's words: `length` also for an answer that the link or a limit broke off."""
        ended = self._outflow.last_token in self.models.eos_token_ids
        return "stop" if self._outflow.has_stopped or ended or self._ended_by == "eos" else "length"

    @property
    def reason(self) -> FinishReason | Literal["stop"]:
        """In ours."""
        return "stop" if self._outflow.has_stopped or self._ended_by is None else self._ended_by

    @property
    def completion_tokens(self) -> int:
        return self._outflow.num_tokens(self.models.decode)

    @property
    def usage(self) -> dict[str, int]:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    @property
    def _stays_here(self) -> bool:
        """Whether the drafter writes it alone, on private text."""
        privacy = self.asked.choices.get("privacy", self._gateway.client.privacy)
        return self.asked.has_private and privacy == "local"

    def _manner(self, mode: Mode) -> UnverifiedPolicy:
        """Nothing waits for a verdict that will not come, and a whole answer takes nothing back."""
        if mode == "offline":
            return "keep"
        return "hold" if self.asked.unverified == "stream" and not self.asked.stream else self.asked.unverified

    def _count(self, seconds: float) -> None:
        """How long a private text is, or what was written on it, goes into no figure."""
        metrics = self._gateway.metrics
        if self._ended_by is None and self.statistics.new_tokens:
            metrics.ended(self.statistics, is_private=self._stays_here)
        metrics.answered("private" if self._stays_here else self.finish_reason)
        if not self.asked.has_private:
            metrics.measured(self.prompt_tokens, self.completion_tokens, seconds)

    def _note(self, client: AsyncClient, event: Event) -> None:
        self._gateway.watch.took(client, event)
        self._gateway.metrics.took(event)
        match event:
            case Stats(statistics=statistics):
                self.statistics = statistics
            case Finished(reason=reason, statistics=statistics):
                self._ended_by, self.statistics = reason, statistics
            case Warned(message=message):
                self.warnings.append(message)
            case _:
                pass

    def _limit(self) -> int:
        """Tokens that the answer may have. The server is told, so it counts what is sent, placeholders and not values.
        Raises Refusal for a prompt that leaves no room for any."""
        room = self.models.max_context - self.prompt_tokens
        if room < 1:
            message = f"prompt has {self.prompt_tokens} tokens: the target's context is {self.models.max_context}"
            raise Refusal(Reason.CONTEXT_FULL, message)
        wanted = self._gateway.config.max_tokens if self.asked.max_tokens is None else self.asked.max_tokens
        return room if wanted is None else min(wanted, room)


def _sent(models: LocalModels, asked: GenerationRequest) -> tuple[int, ...]:
    """The prompt as the server gets it."""
    prompt = Placeholders().replace(asked.prompt) if asked.has_private else asked.prompt
    return tuple(models.encode(prompt, raw=asked.raw))
