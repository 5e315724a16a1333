"""Segments of a prompt: text that the server may see, and private text that stays on the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outrider_proto.errors import UsageError

DEFAULT_KIND = "PRIVATE"
_KIND = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True, repr=False)
class Segment:
    """A piece of a prompt's text, private or not. Raises UsageError.

    `kind` names a private piece for its placeholder: EMAIL gives [EMAIL_1]; None means PRIVATE. The repr never shows
    private text, so that no log and no traceback does.
    """

    text: str
    private: bool = False
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None and not _KIND.fullmatch(self.kind):
            raise UsageError(f"kind={self.kind!r}: need capital letters, digits and _, as in EMAIL")

    def __repr__(self) -> str:
        shown = f"<{self.kind or DEFAULT_KIND}>" if self.private else repr(self.text)
        return f"Segment({shown})"


Content = str | Sequence[Segment]


def as_segments(content: Content) -> tuple[Segment, ...]:
    """Return a content's segments; plain text is one that is not private."""
    return (Segment(content),) if isinstance(content, str) else tuple(content)


def has_private(content: Content) -> bool:
    return not isinstance(content, str) and any(segment.private for segment in content)
