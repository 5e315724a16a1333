"""Response bodies in OpenAI's format, one class per endpoint, with Outrider's extensions under `outrider`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from outrider_client.gateway.completion import GatewayCompletion, usage_of
from outrider_client.gateway.text_stream import TextChunk
from outrider_client.models.local_models import LocalModels
from outrider_client.privacy.fences import private_kinds
from outrider_client.text.detokenizer import REPLACEMENT
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.tool_calls import calls_in

Body = dict[str, Any]  # Any: whatever JSON holds


class ResponseFormatter(Protocol):
    """An endpoint's response format, whole and in events of a stream."""

    @property
    def ends_with_done(self) -> bool:
        """Whether a stream ends with [DONE]."""
        ...

    def opening(self, completion: GatewayCompletion) -> list[Body]: ...

    def chunk(self, chunk: TextChunk) -> list[Body]: ...

    def closing(self, completion: GatewayCompletion) -> list[Body]: ...

    def usage(self, completions: Sequence[GatewayCompletion]) -> list[Body]: ...

    def failed(self, error: Body) -> Body:
        """The event of an error in mid-answer."""
        ...

    def whole(self, completion: GatewayCompletion, chunks: Sequence[TextChunk]) -> Body: ...


class _Formatter:
    ends_with_done = True

    def __init__(self, head: Body, index: int, models: LocalModels, *, include_usage: bool) -> None:
        self._head = head
        self._index = index
        self._models = models
        self._include_usage = include_usage

    def usage(self, completions: Sequence[GatewayCompletion]) -> list[Body]:
        return [{**self._head, "choices": [], "usage": usage_of(completions)}]

    def failed(self, error: Body) -> Body:
        return error

    def _chunk(self, choice: Body, outrider: Body) -> Body:
        chunk = {**self._head, "choices": [{"index": self._index, **choice}], "outrider": outrider}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _whole(self, choice: Body, completion: GatewayCompletion, chunks: Sequence[TextChunk]) -> Body:
        return {
            **self._head,
            "choices": [{"index": self._index, **choice}],
            "usage": usage_of([completion]),
            "outrider": answer_extension(completion, chunks),
        }

    def _token_text(self, token: int) -> str:
        # Decoded after another token: some tokenizers drop the blank before a word that stands alone.
        return self._models.decode((token, token))[len(self._models.decode((token,))) :]

    def _without_eos(self, logprobs: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        return [one for one in logprobs if one.token not in self._models.eos_token_ids]


def chat_head(model: str, *, stream: bool) -> Body:
    """Return what all bodies of a chat have in common."""
    return _head("chatcmpl", "chat.completion.chunk" if stream else "chat.completion", model)


def completion_head(model: str) -> Body:
    """Return what all bodies of a completion have in common."""
    return _head("cmpl", "text_completion", model)


def _head(prefix: str, kind: str, model: str) -> Body:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


class ChatFormatter(_Formatter):
    """/v1/chat/completions: the answer with that `index`."""

    def __init__(self, head: Body, index: int, completion: GatewayCompletion) -> None:
        super().__init__(head, index, completion.models, include_usage=completion.request.include_usage)
        self._fragments = completion.token_fragments
        self._tools = completion.request.tools
        self._held: list[TextChunk] = []  # until it is known whether they are a call

    def opening(self, completion: GatewayCompletion) -> list[Body]:
        return [self._chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}, {})]

    def chunk(self, chunk: TextChunk) -> list[Body]:
        if self._tools:
            self._held.append(chunk)
            return []
        choice = {"delta": {"content": chunk.text}, "logprobs": self._logprobs(chunk.logprobs), "finish_reason": None}
        return [self._chunk(choice, chunk_extension(chunk))]

    def closing(self, completion: GatewayCompletion) -> list[Body]:
        delta: Body = {}
        reason: str = completion.finish_reason
        if self._tools:
            said, reason = self._message(self._held, reason)
            delta = {name: value for name, value in said.items() if value is not None}
            for number, call in enumerate(delta.get("tool_calls", ())):
                call["index"] = number
        return [self._chunk({"delta": delta, "finish_reason": reason}, answer_extension(completion))]

    def whole(self, completion: GatewayCompletion, chunks: Sequence[TextChunk]) -> Body:
        said, reason = self._message(chunks, completion.finish_reason)
        message = {"role": "assistant", "refusal": None, **said}
        logprobs = self._logprobs([one for chunk in chunks for one in chunk.logprobs])
        return self._whole({"message": message, "logprobs": logprobs, "finish_reason": reason}, completion, chunks)

    def _message(self, chunks: Sequence[TextChunk], reason: str) -> tuple[Body, str]:
        """Return text and calls of an answer, and why it ended."""
        text, calls = calls_in(text_of(chunks), self._tools) if self._tools else (text_of(chunks), [])
        if not calls:
            return {"content": text}, reason
        listed = [
            {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": asdict(call)} for call in calls
        ]
        return {"content": text or None, "tool_calls": listed}, "tool_calls"

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Body | None:
        if not logprobs:
            return None
        content = [
            self._token(one.token, one.logprob) | {"top_logprobs": [self._token(*other) for other in one.top]}
            for one in self._without_eos(logprobs)
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Body:
        text = self._token_text(token)
        raw = self._fragments.get(token, None if REPLACEMENT in text else text.encode())
        return {"token": text, "logprob": logprob, "bytes": None if raw is None else list(raw)}


class CompletionFormatter(_Formatter):
    """/v1/completions: the answer with that `index`, behind its prompt if that is to be echoed."""

    def __init__(self, head: Body, index: int, completion: GatewayCompletion) -> None:
        super().__init__(head, index, completion.models, include_usage=completion.request.include_usage)
        self._echoed = completion.echoed

    def opening(self, completion: GatewayCompletion) -> list[Body]:
        choice = {"text": self._echoed, "logprobs": None, "finish_reason": None}
        return [self._chunk(choice, {})] if self._echoed else []

    def chunk(self, chunk: TextChunk) -> list[Body]:
        logprobs = self._logprobs(chunk.logprobs, chunk.offset)
        return [self._chunk({"text": chunk.text, "logprobs": logprobs, "finish_reason": None}, chunk_extension(chunk))]

    def closing(self, completion: GatewayCompletion) -> list[Body]:
        choice = {"text": "", "logprobs": None, "finish_reason": completion.finish_reason}
        return [self._chunk(choice, answer_extension(completion))]

    def whole(self, completion: GatewayCompletion, chunks: Sequence[TextChunk]) -> Body:
        logprobs = self._logprobs([one for chunk in chunks for one in chunk.logprobs], 0)
        text, reason = self._echoed + text_of(chunks), completion.finish_reason
        return self._whole({"text": text, "logprobs": logprobs, "finish_reason": reason}, completion, chunks)

    def _logprobs(self, logprobs: Sequence[TokenLogprobs], offset: int) -> Body | None:
        tokens = self._without_eos(logprobs)
        if not tokens:
            return None
        texts = [self._token_text(one.token) for one in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [{self._token_text(token): logprob for token, logprob in one.top} for one in tokens],
            "text_offset": [offset + sum(map(len, texts[:i])) for i in range(len(texts))],
        }


def merged(bodies: Sequence[Body], completions: Sequence[GatewayCompletion]) -> Body:
    """Return one body with the choices of all. Of several, each has its own extension."""
    if len(bodies) == 1:
        return bodies[0]
    choices = [{**body["choices"][0], "outrider": body["outrider"]} for body in bodies]
    common = {name: value for name, value in bodies[0].items() if name != "outrider"}
    return {**common, "choices": choices, "usage": usage_of(completions)}


def text_of(chunks: Sequence[TextChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def chunk_extension(chunk: TextChunk) -> Body:
    """Extension of a chunk: where its text comes from and where it belongs."""
    extension: Body = {"origin": chunk.origin, "offset": chunk.offset}
    for name in ("rollback_to", "verified_to"):
        if (value := getattr(chunk, name)) is not None:
            extension[name] = value
    return extension


def answer_extension(completion: GatewayCompletion, chunks: Sequence[TextChunk] = ()) -> Body:
    """Extension of a whole answer, or of the last chunk."""
    extension: Body = {"reason": completion.reason, "statistics": asdict(completion.statistics)}
    if kinds := private_kinds(completion.request.prompt):
        extension["private"] = kinds
    if completion.warnings:
        extension["warnings"] = completion.warnings
    if chunks:
        extension["spans"] = [{"origin": chunk.origin, "offset": chunk.offset, "text": chunk.text} for chunk in chunks]
    return extension
