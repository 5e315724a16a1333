"""A private prompt as tokens: what stands before its first private part, and all the rest.

    rendered   <chat template> safe text |# first private text, whatever follows, the template's end
    tokens     safe ---------------------|rest ------------------------------------------------------

The template and the tokenizer see marks in place of private texts until the cut is made, so that the safe tokens are
what they would be whatever is private, how much and in how many parts. Blanks before the cut go with the rest: models
write a word together with the blank before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider_client.core.prompt import PlainMessage, Prompt, plain_prompt, segments_of
from outrider_client.core.prompt_segments import Content, as_segments
from outrider_proto.errors import UsageError

_FIRST_MARK, _LAST_MARK = 0xE000, 0xF8FF  # of Unicode's private use: no template and no case rule touches them


class PartTokenizer(Protocol):
    """What is asked of a tokenizer here; see tokenizer.TextCodec."""

    def encode(self, text: str) -> list[int]: ...

    def render(self, messages: Sequence[PlainMessage]) -> str: ...

    def encode_part(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True, repr=False)
class PrivateSplit:
    """Tokens that may leave, maybe none, and those that may not. Its repr tells neither."""

    safe: tuple[int, ...]
    rest: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        return self.safe + self.rest


def split(prompt: Prompt, codec: PartTokenizer, *, raw: bool) -> PrivateSplit:
    """At the first private segment. Raises UsageError where the chat template loses one."""
    marks = _Marks(segment.text for segment in segments_of(prompt))
    marked = plain_prompt(prompt, marks.write)
    if isinstance(marked, str) and raw:
        rendered = marked
    else:
        turns = [PlainMessage(role="user", content=marked)] if isinstance(marked, str) else marked
        rendered = codec.render([turn for turn in turns if not isinstance(turn, int)])
    safe, rest = marks.cut(rendered)
    first = codec.encode(safe) if raw and safe else codec.encode_part(safe)
    return PrivateSplit(tuple(first), tuple(codec.encode_part(rest)))


class _Marks:
    """Stand-ins for private texts, of a character that no text holds."""

    def __init__(self, texts: Iterable[str]) -> None:
        held = set().union(*texts)
        self._mark = next(chr(code) for code in range(_FIRST_MARK, _LAST_MARK + 1) if chr(code) not in held)
        self._private: list[str] = []

    def write(self, content: Content) -> str:
        return "".join(self._marked(segment.text) if segment.private else segment.text
                       for segment in as_segments(content))  # fmt: skip

    def cut(self, rendered: str) -> tuple[str, str]:
        """Before the first mark, and all the rest with the private texts in their places. Raises UsageError."""
        if set(self._found(rendered)) != set(range(len(self._private))):
            raise UsageError("the chat template leaves out a private segment: give the prompt raw, or mark other text")
        safe = rendered[: rendered.index(self._mark)].rstrip(" ")
        return safe, self._pattern.sub(lambda mark: self._private[int(mark[1])], rendered[len(safe) :])

    def _marked(self, text: str) -> str:
        self._private.append(text)
        return f"{self._mark}{len(self._private) - 1}{self._mark}"

    def _found(self, rendered: str) -> list[int]:
        return [int(mark[1]) for mark in self._pattern.finditer(rendered)]

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(f"{self._mark}([0-9]+){self._mark}")
