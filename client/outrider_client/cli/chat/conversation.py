"""The messages of a chat, and which of their text is private.

An answer that was written here from private text is private itself. One that was written over placeholders is not: its
values become placeholders again when the next prompt is sent.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from outrider_client.core.prompt import (
    ASSISTANT_ROLE,
    SYSTEM_ROLE,
    USER_ROLE,
    Content,
    PromptMessage,
    Segment,
    as_content,
    as_segments,
    has_private,
)
from outrider_client.privacy.fences import parse_fences
from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json


class ChatConversation:
    """Grows by a message at a time. `private` is text to add to the first one."""

    def __init__(self, private: str = "", system: str = "") -> None:
        self.messages: list[PromptMessage] = []  # without the system message
        self._attached = private
        self._system: list[PromptMessage] = []  # one or none
        self.set_system(system)

    @property
    def prompt(self) -> list[PromptMessage]:
        """All messages, as the model gets them."""
        return [*self._system, *self.messages]

    @property
    def system_text(self) -> str:
        return "".join(_fenced(message["content"]) for message in self._system)

    def set_system(self, text: str) -> None:
        """Replace the system message, or remove it if `text` is empty. Raises what parse_fences does."""
        content = as_content(parse_fences(text))
        self._system = [PromptMessage(role=SYSTEM_ROLE, content=content)] if text else []

    def attach(self, private: str) -> None:
        self._attached += private

    def add_question(self, line: str) -> None:
        """Add the user's message, `<<private: ...>>` in it being private. Raises what parse_fences does."""
        segments = tuple(parse_fences(line))
        if self._attached:
            segments = (*segments, Segment("\n"), Segment(self._attached, private=True))
        self._attached = ""
        self._add(USER_ROLE, segments)

    def add_answer(self, text: str, *, private: bool) -> None:
        self._add(ASSISTANT_ROLE, (Segment(text, private),))

    def undo(self) -> None:
        """Drop the last question and what follows it. Raises UsageError."""
        if not self.messages:
            raise UsageError("/undo: there is no question yet")
        while self.messages and self.messages.pop()["role"] != USER_ROLE:
            pass

    def clear(self) -> None:
        """Start again with the same system message."""
        self.messages.clear()
        self._attached = ""

    @property
    def is_private(self) -> bool:
        return any(has_private(message["content"]) for message in self.prompt)

    @property
    def has_private_system(self) -> bool:
        return any(has_private(message["content"]) for message in self._system)

    def text(self) -> str:
        """The conversation as people read it, private text in fences."""
        return "\n\n".join(f"{message['role']}: {_fenced(message['content'])}" for message in self.prompt)

    def to_json(self) -> str:
        """The conversation as a JSON list of messages, in the form that the gateway takes, too."""
        # Not as text: an answer may hold what looks like a turn, and private text what looks like the end of a fence.
        messages = [{"role": each["role"], "content": _json_content(each["content"])} for each in self.prompt]
        return json.dumps(messages, ensure_ascii=False, indent=1)

    def load_json(self, text: str) -> None:
        """Replace everything by a conversation that `to_json` wrote. Raises UsageError, which quotes none of it."""
        try:
            items = parse_json(text, "conversation")
        except UsageError:
            raise _unreadable("not JSON; /save writes it to names in .json") from None
        if not isinstance(items, list):
            raise _unreadable("not a list of messages")
        messages = [_message(item) for item in items]
        system = [message for message in messages[:1] if message["role"] == SYSTEM_ROLE]
        turns = messages[len(system) :]
        if [message["role"] for message in turns] != [USER_ROLE, ASSISTANT_ROLE] * (len(turns) // 2):
            raise _unreadable("questions and answers do not alternate")
        self.clear()
        self._system, self.messages = system, turns

    def _add(self, role: str, segments: Sequence[Segment]) -> None:
        self.messages.append(PromptMessage(role=role, content=as_content(segments)))


def _fenced(content: Content) -> str:
    return "".join(
        f"<<{segment.kind or 'private'}: {segment.text}>>" if segment.private else segment.text
        for segment in as_segments(content)
    )


def _json_content(content: Content) -> str | list[dict[str, object]]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": each.text, "private": each.private, "kind": each.kind} for each in content]


def _message(item: object) -> PromptMessage:
    match item:
        case {"role": "system" | "user" | "assistant" as role, "content": str() as content}:
            return PromptMessage(role=role, content=content)
        case {"role": "system" | "user" | "assistant" as role, "content": [*parts]}:
            return PromptMessage(role=role, content=as_content(map(_segment, parts)))
    raise _unreadable("a message without role or content")


def _segment(part: object) -> Segment:
    # Strict: what is private must not be sent because its mark is spelled in another way.
    match part:
        case {"text": str() as text, "private": bool() as private, "kind": (None | str()) as kind}:
            return Segment(text, private, kind)
    raise _unreadable("a part of a message that does not say whether it is private")


def _unreadable(what: str) -> UsageError:
    return UsageError(f"this is no conversation that /save wrote: {what}")
