"""A prompt in parts: what the server may see, and what stays on the device. Says nothing of how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from outrider_proto.errors import UsageError

DEFAULT_KIND = "PRIVATE"
_KIND = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True, repr=False)
class Segment:
    """A stretch of text. `kind` names what a private one is, for its placeholder: EMAIL gives [EMAIL_1]; None PRIVATE.

    Raises UsageError. Its repr does not tell a private text, so that no log and no traceback does.
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
    """A plain text is safe."""
    return (Segment(content),) if isinstance(content, str) else tuple(content)


def has_private(content: Content) -> bool:
    return not isinstance(content, str) and any(segment.private for segment in content)
