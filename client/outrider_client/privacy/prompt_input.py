"""A command's prompt: its text with fences, private files after it, and what the detector finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider_client.core.prompt_segments import DEFAULT_KIND, Segment, as_segments
from outrider_client.privacy.fences import parse_fences
from outrider_proto.errors import UsageError

_BETWEEN = Segment("\n\n")


def asked_prompt(
    text: str, files: Sequence[Path] = (), *, fences: bool = True, detect: bool = False
) -> str | tuple[Segment, ...]:
    """A plain text where nothing is private. Raises UsageError."""
    segments = parse_fences(text) if fences else (Segment(text),)
    if detect:
        from outrider_client.privacy.detector import Detector

        segments = Detector().mark(segments)
    for file in files:
        segments += (*((_BETWEEN,) if segments else ()), Segment(read_private(file), private=True))
    if not any(segment.private for segment in segments):
        return "".join(segment.text for segment in segments)
    return segments


def kinds_of(prompt: str | Sequence[Segment]) -> list[str]:
    """Of its private segments, in order."""
    return [segment.kind or DEFAULT_KIND for segment in as_segments(prompt) if segment.private]


def read_private(file: Path) -> str:
    """A file's text. Raises UsageError, which tells nothing of it."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"private={file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"private={file}: not UTF-8 text") from None  # the decoder's error holds the bytes
