"""Answers in OpenAI's form. One class an endpoint; what they share of Outrider's own goes under `outrider`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from outrider_client.gateway.completion import GatewayCompletion
from outrider_client.gateway.text_stream import TextChunk
from outrider_client.models.local_models import LocalModels
from outrider_client.text.detokenizer import REPLACEMENT
from outrider_client.text.logprobs import TokenLogprobs

Body = dict[str, Any]  # Any: whatever JSON holds


class ResponseFormat(Protocol):
    """How an endpoint puts an answer."""

    def opening(self) -> Body | None:
        """The first chunk, before any text."""

    def chunk(self, piece: TextChunk) -> Body: ...

    def closing(self, answering: GatewayCompletion) -> Body: ...

    def usage(self, answering: GatewayCompletion) -> Body: ...

    def whole(self, answering: GatewayCompletion, pieces: Sequence[TextChunk]) -> Body: ...


class _FormatBase:
    def __init__(self, prefix: str, kind: str, model: str, models: LocalModels, *, include_usage: bool) -> None:
        self._models = models
        self._include_usage = include_usage
        self._head = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}

    def usage(self, answering: GatewayCompletion) -> Body:
        return {**self._head, "choices": [], "usage": answering.usage}

    def _chunk(self, choice: Body, outrider: Body) -> Body:
        chunk = {**self._head, "choices": [{"index": 0, **choice}], "outrider": outrider}
        return {**chunk, "usage": None} if self._include_usage else chunk

    def _word(self, token: int) -> str:
        """As within a text: alone, some tokenizers take its blank away."""
        return self._models.decode((token, token))[len(self._models.decode((token,))) :]

    def _without_end(self, told: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
        return [one for one in told if one.token not in self._models.eos_token_ids]


class ChatFormat(_FormatBase):
    """/v1/chat/completions."""

    def __init__(self, model: str, models: LocalModels, *, stream: bool, include_usage: bool) -> None:
        kind = "chat.completion.chunk" if stream else "chat.completion"
        super().__init__("chatcmpl", kind, model, models, include_usage=include_usage)

    def opening(self) -> Body | None:
        return self._chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}, {})

    def chunk(self, piece: TextChunk) -> Body:
        choice = {"delta": {"content": piece.text}, "logprobs": self._logprobs(piece.logprobs), "finish_reason": None}
        return self._chunk(choice, shown(piece))

    def closing(self, answering: GatewayCompletion) -> Body:
        return self._chunk({"delta": {}, "finish_reason": answering.finish_reason}, summary(answering))

    def whole(self, answering: GatewayCompletion, pieces: Sequence[TextChunk]) -> Body:
        message = {"role": "assistant", "content": text_of(pieces), "refusal": None}
        told = self._logprobs([one for piece in pieces for one in piece.logprobs])
        choice = {"index": 0, "message": message, "logprobs": told, "finish_reason": answering.finish_reason}
        return {**self._head, "choices": [choice], "usage": answering.usage, "outrider": summary(answering, pieces)}

    def _logprobs(self, told: Sequence[TokenLogprobs]) -> Body | None:
        if not told:
            return None
        content = [
            self._told(one.token, one.logprob) | {"top_logprobs": [self._told(*other) for other in one.top]}
            for one in self._without_end(told)
        ]
        return {"content": content, "refusal": None}

    def _told(self, token: int, logprob: float) -> Body:
        text = self._word(token)
        return {"token": text, "logprob": logprob, "bytes": None if REPLACEMENT in text else list(text.encode())}


class CompletionFormat(_FormatBase):
    """/v1/completions."""

    def __init__(self, model: str, models: LocalModels, *, include_usage: bool) -> None:
        super().__init__("cmpl", "text_completion", model, models, include_usage=include_usage)

    def opening(self) -> Body | None:
        return None

    def chunk(self, piece: TextChunk) -> Body:
        told = self._logprobs(piece.logprobs, piece.offset)
        return self._chunk({"text": piece.text, "logprobs": told, "finish_reason": None}, shown(piece))

    def closing(self, answering: GatewayCompletion) -> Body:
        choice = {"text": "", "logprobs": None, "finish_reason": answering.finish_reason}
        return self._chunk(choice, summary(answering))

    def whole(self, answering: GatewayCompletion, pieces: Sequence[TextChunk]) -> Body:
        told = self._logprobs([one for piece in pieces for one in piece.logprobs], 0)
        text, reason = text_of(pieces), answering.finish_reason
        choice = {"index": 0, "text": text, "logprobs": told, "finish_reason": reason}
        return {**self._head, "choices": [choice], "usage": answering.usage, "outrider": summary(answering, pieces)}

    def _logprobs(self, told: Sequence[TokenLogprobs], offset: int) -> Body | None:
        kept = self._without_end(told)
        if not kept:
            return None
        words = [self._word(one.token) for one in kept]
        return {
            "tokens": words,
            "token_logprobs": [one.logprob for one in kept],
            "top_logprobs": [{self._word(token): logprob for token, logprob in one.top} for one in kept],
            "text_offset": [offset + sum(map(len, words[:i])) for i in range(len(words))],
        }


def text_of(pieces: Sequence[TextChunk]) -> str:
    return "".join(piece.text for piece in pieces)


def shown(piece: TextChunk) -> Body:
    """Where a chunk's text comes from and where it belongs."""
    said: Body = {"origin": piece.origin, "offset": piece.offset}
    for name in ("rollback_to", "verified_to"):
        if (value := getattr(piece, name)) is not None:
            said[name] = value
    return said


def summary(answering: GatewayCompletion, pieces: Sequence[TextChunk] = ()) -> Body:
    """Of a whole answer."""
    said: Body = {"reason": answering.reason, "statistics": asdict(answering.statistics)}
    if answering.warnings:
        said["warnings"] = answering.warnings
    if pieces:
        said["spans"] = [{"origin": piece.origin, "offset": piece.offset, "text": piece.text} for piece in pieces]
    return said
