"""The messages of a chat, and which of their text is private.

An answer that was written here from private text is private itself. One that was written over placeholders is not: its
values become placeholders again when the next prompt is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider_client.core.prompt import PromptMessage
from outrider_client.core.prompt_segments import Segment, as_segments, has_private
from outrider_client.privacy.fences import parse_fences


class ChatConversation:
    """Grows by a message at a time. `private` is text to add to the first one."""

    def __init__(self, private: str = "") -> None:
        self.messages: list[PromptMessage] = []
        self._attached = private

    def attach(self, private: str) -> None:
        """Add private text to the next message."""
        self._attached += private

    def add_question(self, line: str) -> None:
        """Add the user's message, `<<private: ...>>` in it being private. Raises what parse_fences does."""
        segments = tuple(parse_fences(line))
        if self._attached:
            segments = (*segments, Segment("\n"), Segment(self._attached, private=True))
        self._attached = ""
        self._add("user", segments)

    def add_answer(self, text: str, *, private: bool) -> None:
        self._add("assistant", (Segment(text, private),))

    def remove_last(self) -> PromptMessage:
        return self.messages.pop()

    def clear(self) -> None:
        self.messages.clear()
        self._attached = ""

    @property
    def is_private(self) -> bool:
        return any(has_private(message["content"]) for message in self.messages)

    def text(self) -> str:
        """The conversation as people read it, private text in fences."""
        return "\n\n".join(
            f"{message['role']}: {_fenced(as_segments(message['content']))}" for message in self.messages
        )

    def _add(self, role: str, segments: Sequence[Segment]) -> None:
        content = tuple(segments) if has_private(segments) else "".join(segment.text for segment in segments)
        self.messages.append(PromptMessage(role=role, content=content))


def _fenced(segments: Sequence[Segment]) -> str:
    return "".join(
        f"<<{segment.kind or 'private'}: {segment.text}>>" if segment.private else segment.text for segment in segments
    )
