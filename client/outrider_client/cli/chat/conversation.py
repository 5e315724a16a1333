"""The turns of a chat, and which of their words are private. What was written here from private text is private itself;
what was written over placeholders is not, since its values become placeholders again."""

from __future__ import annotations

from collections.abc import Sequence

from outrider_client.core.prompt import PromptMessage
from outrider_client.core.prompt_segments import Segment, as_segments, has_private
from outrider_client.privacy.fences import parse_fences


class ChatConversation:
    """Mutable; begins empty. `private` is text that goes along with the first message."""

    def __init__(self, private: str = "") -> None:
        self.messages: list[PromptMessage] = []
        self._enclosed = private

    def enclose(self, private: str) -> None:
        """Have this text go along with the next message."""
        self._enclosed += private

    def asks(self, line: str) -> None:
        """The user says something; `<<...>>` in it is private. Raises UsageError for a fence that does not close."""
        segments = tuple(parse_fences(line))
        if self._enclosed:
            segments = (*segments, Segment("\n"), Segment(self._enclosed, private=True))
        self._enclosed = ""
        self._add("user", segments)

    def answered(self, text: str, *, private: bool) -> None:
        self._add("assistant", (Segment(text, private),))

    def take_back(self) -> None:
        """The last message was refused: it is not part of the conversation."""
        self.messages.pop()

    def clear(self) -> None:
        self.messages.clear()
        self._enclosed = ""

    @property
    def is_private(self) -> bool:
        """Whether anything in it is."""
        return any(has_private(message["content"]) for message in self.messages)

    def text(self) -> str:
        """For a file or for reading."""
        return "\n\n".join(
            f"{message['role']}: {_fenced(as_segments(message['content']))}" for message in self.messages
        )

    def _add(self, role: str, segments: Sequence[Segment]) -> None:
        content = tuple(segments) if has_private(segments) else "".join(segment.text for segment in segments)
        self.messages.append(PromptMessage(role=role, content=content))


def _fenced(segments: Sequence[Segment]) -> str:
    return "".join(f"<<{segment.text}>>" if segment.private else segment.text for segment in segments)
