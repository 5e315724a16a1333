"""Response bodies in OpenAI's format, one class per endpoint, with Outrider's extensions under `outrider`."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from outrider_client.gateway.completion import GatewayCompletion, usage_of
from outrider_client.gateway.text_stream import TextChunk, text_of
from outrider_client.privacy.fences import private_kinds
from outrider_client.text.detokenizer import REPLACEMENT
from outrider_client.text.logprobs import TokenLogprobs

Body = dict[str, Any]  # Any: whatever JSON holds


class ResponseFormatter(ABC):
    """An answer in an endpoint's format, whole and in events of a stream."""

    ends_with_done = True  # a stream ends with [DONE]

    def __init__(self, completion: GatewayCompletion) -> None:
        self.completion = completion

    @abstractmethod
    def opening(self) -> list[Body]: ...

    @abstractmethod
    def chunk(self, chunk: TextChunk) -> list[Body]: ...

    @abstractmethod
    def closing(self) -> list[Body]: ...

    @abstractmethod
    def whole(self, chunks: Sequence[TextChunk]) -> Body: ...

    @abstractmethod
    def usage(self, completions: Sequence[GatewayCompletion]) -> list[Body]: ...

    def failed(self, error: Body) -> Body:
        """The event of an error in mid-answer."""
        return error


class _ChoiceFormatter(ResponseFormatter):
    """The answer with that `index`; `head` is what all bodies of a response have in common."""

    def __init__(self, head: Body, completion: GatewayCompletion, index: int) -> None:
        super().__init__(completion)
        self._head = head
        self._index = index
        self._models = completion.models

    def usage(self, completions: Sequence[GatewayCompletion]) -> list[Body]:
        return [{**self._head, "choices": [], "usage": usage_of(completions)}]

    def _chunk(self, choice: Body, outrider: Body) -> list[Body]:
        chunk = {**self._head, "choices": [{"index": self._index, **choice}], "outrider": outrider}
        return [{**chunk, "usage": None} if self.completion.request.include_usage else chunk]

    def _whole(self, said: Body, chunks: Sequence[TextChunk], reason: str) -> Body:
        [body] = self._chunk(self._choice(said, chunks, reason), answer_extension(self.completion, chunks))
        return {**body, "usage": usage_of([self.completion])}

    def _choice(self, said: Body, chunks: Sequence[TextChunk] = (), reason: str | None = None) -> Body:
        return {**said, "logprobs": self._logprobs(chunks), "finish_reason": reason}

    @abstractmethod
    def _logprobs(self, chunks: Sequence[TextChunk]) -> Body | None: ...

    def _token_text(self, token: int) -> str:
        # Decoded after another token: some tokenizers drop the blank before a word that stands alone.
        return self._models.decode((token, token))[len(self._models.decode((token,))) :]

    def _logprobs_in(self, chunks: Sequence[TextChunk]) -> list[tuple[TokenLogprobs, int]]:
        """The log probabilities in chunks, each with where its token begins in the answer; none of an end of text."""
        eos = self._models.eos_token_ids
        return [(one, begin) for chunk in chunks for one, begin in chunk.logprobs if one.token not in eos]


def response_head(prefix: str, kind: str, model: str) -> Body:
    """Return what all bodies of a response have in common."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


class ChatFormatter(_ChoiceFormatter):
    """/v1/chat/completions."""

    def __init__(self, head: Body, completion: GatewayCompletion, index: int) -> None:
        super().__init__(head, completion, index)
        self._tools = completion.request.tools
        self._held: list[TextChunk] = []  # until it is known whether they are a call

    def opening(self) -> list[Body]:
        return self._chunk(self._choice({"delta": {"role": "assistant", "content": ""}}), {})

    def chunk(self, chunk: TextChunk) -> list[Body]:
        if self._tools:
            self._held.append(chunk)
            return []
        return self._chunk(self._choice({"delta": {"content": chunk.text}}, [chunk]), chunk_extension(chunk))

    def closing(self) -> list[Body]:
        delta: Body = {}
        reason: str = self.completion.finish_reason
        if self._tools:
            said, reason = self._message(self._held)
            delta = {name: value for name, value in said.items() if value is not None}
            for number, call in enumerate(delta.get("tool_calls", ())):
                call["index"] = number
        return self._chunk(self._choice({"delta": delta}, self._held, reason), answer_extension(self.completion))

    def whole(self, chunks: Sequence[TextChunk]) -> Body:
        said, reason = self._message(chunks)
        return self._whole({"message": {"role": "assistant", "refusal": None, **said}}, chunks, reason)

    def _message(self, chunks: Sequence[TextChunk]) -> tuple[Body, str]:
        """Return text and calls of an answer, and why it ended."""
        text, calls = self.completion.text_and_calls(chunks)
        if not calls:
            return {"content": text}, self.completion.finish_reason
        listed = [
            {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": asdict(call)} for call in calls
        ]
        return {"content": text or None, "tool_calls": listed}, "tool_calls"

    def _logprobs(self, chunks: Sequence[TextChunk]) -> Body | None:
        logprobs = self._logprobs_in(chunks)
        if not logprobs:
            return None
        content = [
            self._token(one.token, one.logprob) | {"top_logprobs": [self._token(*other) for other in one.top]}
            for one, _ in logprobs
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Body:
        text = self._token_text(token)
        raw = self.completion.token_fragments.get(token, None if REPLACEMENT in text else text.encode())
        return {"token": text, "logprob": logprob, "bytes": None if raw is None else list(raw)}


class CompletionFormatter(_ChoiceFormatter):
    """/v1/completions, behind its prompt if that is to be echoed."""

    def opening(self) -> list[Body]:
        echoed = self.completion.echoed
        return self._chunk(self._choice({"text": echoed}), {}) if echoed else []

    def chunk(self, chunk: TextChunk) -> list[Body]:
        return self._chunk(self._choice({"text": chunk.text}, [chunk]), chunk_extension(chunk))

    def closing(self) -> list[Body]:
        choice = self._choice({"text": ""}, (), self.completion.finish_reason)
        return self._chunk(choice, answer_extension(self.completion))

    def whole(self, chunks: Sequence[TextChunk]) -> Body:
        return self._whole({"text": self.completion.echoed + text_of(chunks)}, chunks, self.completion.finish_reason)

    def _logprobs(self, chunks: Sequence[TextChunk]) -> Body | None:
        logprobs = self._logprobs_in(chunks)
        if not logprobs:
            return None
        return {
            "tokens": [self._spelled(one.token) for one, _ in logprobs],
            "token_logprobs": [one.logprob for one, _ in logprobs],
            "top_logprobs": [self._top(one) for one, _ in logprobs],
            "text_offset": [begin for _, begin in logprobs],
        }

    def _top(self, chosen: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens by their text. One that reads as the chosen or a likelier one has its id."""
        texts = {self._spelled(chosen.token): chosen.token}
        for token, _ in chosen.top:
            texts.setdefault(self._spelled(token), token)
        names = {token: text for text, token in texts.items()}
        return {names.get(token, f"token_id:{token}"): logprob for token, logprob in chosen.top}

    def _spelled(self, token: int) -> str:
        """A token's text; the bytes of a piece of a character, as OpenAI spells them."""
        raw = self.completion.token_fragments.get(token)
        return self._token_text(token) if raw is None else f"bytes:{str(raw)[2:-1]}"


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
