"""Answers for an app: run the client on pooled sessions and yield the text that may be sent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from outrider_client.async_client import AsyncClient
from outrider_client.core.config import UNASKED, UNLIMITED, ClientConfig
from outrider_client.core.events import Committed, Event, Finished, RolledBack, Stats, Verified, Warned
from outrider_client.core.gateway_config import UnverifiedPolicy
from outrider_client.core.prompt import ChatForm, PlainPrompt, Prompt, dropped_warning
from outrider_client.core.statistics import Statistics
from outrider_client.gateway.errors import ApiError, bad_schema, server_unreachable
from outrider_client.gateway.gateway import Gateway
from outrider_client.gateway.request_mapping import GenerationRequest
from outrider_client.gateway.text_stream import TextChunk, TextStream, text_of
from outrider_client.privacy.placeholders import Placeholders, as_in_json, restored
from outrider_client.privacy.spellings import in_json
from outrider_client.text.tool_calls import Tool, ToolCall, calls_in, described
from outrider_client.text.transcript import FinishReason
from outrider_proto.errors import LinkError, Reason, Refusal, UsageError

OpenAIReason = Literal["stop", "length"]
_NO_TARGET = (
    "the link to the server is down, and the rest of the answer would be the drafter's alone: try again later, or allow"
    ' such text with "outrider": {"unverified": "keep"}'
)
_OTHER_TARGET = (
    "the server came back with another model or dtype, and text that was sent cannot be taken back: ask again"
)
_STATS_FOLLOW = (Committed, Verified, RolledBack)  # events of a verdict, with a Stats right after them


class GatewayCompletion:
    """One answer. Raises ApiError, or OutriderError: LinkError if no link came up before the first token."""

    def __init__(self, gateway: Gateway, request: GenerationRequest) -> None:
        self.request = request
        self.statistics = Statistics()
        self.warnings: list[str] = []
        self.drafter, self.models = gateway.models_for(request)
        self._gateway = gateway
        self._config = config = self._checked_config()
        has_logprobs = config.logprobs is not None
        self.token_fragments = gateway.token_fragments if has_logprobs else {}
        # The app's policy, else the gateway's. Offline on purpose, no verdict comes to wait for.
        asked = request.unverified or gateway.config.unverified
        wanted: UnverifiedPolicy = "keep" if config.mode == "offline" else asked
        # A whole answer with that wish waits, too, but may end unverified.
        policy: UnverifiedPolicy = "hold" if wanted == "stream" and not request.takes_back else wanted
        self._text_stream = TextStream(request.stops, policy, self.models.decode, has_logprobs=has_logprobs)
        self._placeholders = Placeholders()
        self._sent = () if self._is_local else self._encode()
        self.prompt_tokens = len(self._sent) or len(self.models.split(request.prompt, raw=config.raw_form).whole)
        self._takes_back = policy == "stream" or not request.stream
        self._needs_target = wanted == "hold" and not self._is_local
        on_reconnect = "keep" if policy == "keep" else "verify"
        self._overrides = {**request.overrides, "max_new_tokens": self._limit(), "on_reconnect": on_reconnect}
        self._ended_by: FinishReason | None = None

    def start(self, turns: asyncio.Semaphore, put: Callable[[TextChunk], None]) -> asyncio.Task[None]:
        """Write the answer when its turn comes, and hand out its text as it may be sent. Cancelling ends it."""
        # In a task of its own: the request of an app that goes away is cancelled repeatedly, which would cut short the
        # clean-up that returns the session in order.
        return self._gateway.start_task(self._write(turns, put))

    async def _write(self, turns: asyncio.Semaphore, put: Callable[[TextChunk], None]) -> None:
        async with turns:
            await self._write_now(put)

    async def _write_now(self, put: Callable[[TextChunk], None]) -> None:
        started = time.perf_counter()
        offline_s = self._gateway.watch.offline_s
        if self._needs_target and offline_s is not None and offline_s >= self._gateway.client.wait_for_link_s:
            self._gateway.watch.wake()  # probed ever less often while it is away; but now somebody asks for it
            raise server_unreachable(_NO_TARGET)
        async with self._gateway.pool.acquire(self.drafter, self._sent, is_private=self._is_local) as client:
            client.begin_conversation()  # the session's last request may have been another app's
            prompt = self.request.prompt if self.request.has_private else self._sent
            async with contextlib.aclosing(client.generate(prompt, **self._overrides)) as events:
                async for event in events:
                    self._observe(client, event)
                    if self._needs_target and self._ended_by in ("unverified", "link"):
                        raise server_unreachable(_NO_TARGET)
                    for chunk in self._text_stream.take(event):
                        if chunk.rollback_to is not None and not self._takes_back:
                            raise server_unreachable(_OTHER_TARGET)
                        put(chunk)
                    # Not before the verdict's Stats, which the metrics count.
                    if self._text_stream.stopped and not isinstance(event, _STATS_FOLLOW):
                        break
        if self._ended_by == "link" and self._text_stream.last_token is None:
            raise LinkError("the link is down, and the drafter cannot continue this text")
        self._record(time.perf_counter() - started)

    @property
    def echoed(self) -> str:
        """The text that goes in front of the answer."""
        echoed = self.request.echoed
        return echoed if isinstance(echoed, str) else self.models.decode(echoed)

    @property
    def finish_reason(self) -> OpenAIReason:
        """The reason in OpenAI's terms, where `length` also stands for an answer that an outage cut short."""
        ended = self._text_stream.last_token in self.models.eos_token_ids
        return "stop" if self._text_stream.has_stopped or ended or self._ended_by == "eos" else "length"

    @property
    def reason(self) -> FinishReason | Literal["stop"]:
        """The reason in Outrider's terms."""
        return "stop" if self._text_stream.has_stopped or self._ended_by is None else self._ended_by

    def text_and_calls(self, chunks: Sequence[TextChunk]) -> tuple[str, list[ToolCall]]:
        """Return the calls in a whole answer, and the text around them."""
        tools, table = self.request.tools, self._placeholders
        values = table.values
        if not (tools and values):
            return calls_in(text_of(chunks), tools)
        # Read as the target wrote it: values may have the signs of JSON, or of a call.
        told = [Tool(table.hide(tool.name), "", in_json(tool.parameters, table.hide)) for tool in tools]
        text, calls = calls_in(self._text_stream.unrestored, told)
        in_calls = as_in_json(values)
        return restored(text, values), [
            ToolCall(restored(call.name, values), restored(call.arguments, in_calls)) for call in calls
        ]

    @property
    def completion_tokens(self) -> int:
        return self._text_stream.num_tokens

    @property
    def _is_local(self) -> bool:
        """True if the drafter answers private text alone, on this device."""
        return self.request.has_private and self._config.privacy == "local"

    def _record(self, seconds: float) -> None:
        # Of a private answer nothing is counted that shows how long its text is, and of a private prompt neither.
        metrics = self._gateway.metrics
        # Without a Finished event (a stop string ended the answer) nobody else counts the statistics.
        if self._ended_by is None and self.statistics.new_tokens:
            metrics.observe_statistics(self.statistics, is_private=self._is_local)
        metrics.finished.labels("private" if self._is_local else self.finish_reason).inc()
        if not self.request.has_private:
            metrics.observe_request(self.prompt_tokens, self.completion_tokens, seconds)

    def _observe(self, client: AsyncClient, event: Event) -> None:
        self._gateway.watch.observe(client, event)
        self._gateway.metrics.observe_event(event)
        match event:
            case Stats(statistics=statistics):
                self.statistics = statistics
            case Finished(reason=reason, statistics=statistics):
                self._ended_by, self.statistics = reason, statistics
            case Warned(message=message):
                self.warnings.append(message)

    def _checked_config(self) -> ClientConfig:
        """Raise ApiError for a schema that cannot be followed, and for tokens that do not exist."""
        try:
            config = self._gateway.client.for_answer(**self.request.overrides)
            self.models.rules_of(config.sampling.rules)
        except UsageError as error:
            name, _, why = str(error).partition(":")
            if name == "json_schema":
                name = "tools" if self.request.tools else "response_format"
                raise bad_schema(name, why) from error
            raise ApiError(400, str(error), param="logit_bias") from error
        return config

    def _limit(self) -> int:
        """Largest number of tokens in the answer. Raises Refusal for a prompt that leaves no room for any."""
        if self.prompt_tokens >= self.models.max_context:
            message = f"prompt has {self.prompt_tokens} tokens: the target's context is {self.models.max_context}"
            raise Refusal(Reason.CONTEXT_FULL, message)
        return self._wanted_tokens

    @property
    def _wanted_tokens(self) -> int:
        wanted = self._gateway.config.max_tokens if self.request.max_tokens is None else self.request.max_tokens
        unasked = UNASKED if self.request.overrides.get("stop_loops") else UNLIMITED
        return unasked if wanted is None else min(wanted, UNLIMITED)

    def _encode(self) -> tuple[int, ...]:
        """The prompt as the server gets it, with placeholders for private text."""
        request = self.request
        if request.tool_messages is not None:
            # Templates refuse what others take, such as ids of another form: those get the functions as text.
            with contextlib.suppress(UsageError):
                with_tools = replace(request.form, tools=[*map(described, request.tools)])
                return self._encode_newest(request.tool_messages, with_tools)
        prompt = self._placeholders.replace(request.prompt) if request.has_private else request.prompt
        return self._encode_newest(prompt, request.form)

    def _encode_newest(self, prompt: Prompt | PlainPrompt, form: ChatForm) -> tuple[int, ...]:
        raw, on_full = self._config.raw_form, self._config.on_full_context
        encoded = self.models.encode_newest(prompt, raw=raw, reserve=self._wanted_tokens, on_full=on_full, form=form)
        if encoded.num_dropped and not self.request.has_private:  # else the client drops them again, and tells
            self.warnings.append(dropped_warning(encoded.num_dropped))
        return tuple(encoded.tokens)


async def chunks_of(
    completions: Sequence[GatewayCompletion], at_once: int
) -> AsyncGenerator[tuple[int, TextChunk | None], None]:
    """Write all answers, some at once; yield the text of each that may be sent, as it comes, and None at its end.

    Closing the generator ends the answers and keeps their sessions.
    """
    arrived: asyncio.Queue[tuple[int, TextChunk | None]] = asyncio.Queue()
    turns = asyncio.Semaphore(at_once)

    def put(number: int, chunk: TextChunk | None) -> None:
        arrived.put_nowait((number, chunk))

    def end(number: int, _: asyncio.Task[None]) -> None:
        put(number, None)

    writing = [completion.start(turns, partial(put, number)) for number, completion in enumerate(completions)]
    for number, task in enumerate(writing):
        task.add_done_callback(partial(end, number))
    try:
        num_left = len(writing)
        while num_left:
            number, chunk = await arrived.get()
            if chunk is None:
                writing[number].result()
                num_left -= 1
            yield number, chunk
    finally:
        for task in writing:
            task.cancel()


def usage_of(completions: Sequence[GatewayCompletion]) -> dict[str, int]:
    """Return the tokens of all answers; a prompt with several counts once."""
    prompt = sum(one.prompt_tokens for one in completions if not one.request.is_repeated)
    completion = sum(one.completion_tokens for one in completions)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
