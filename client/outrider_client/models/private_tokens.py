"""Splits a private prompt's tokens at the first private part.

    rendered   <chat template> safe text |# first private text, whatever follows, the template's end
    tokens     safe ---------------------|rest ------------------------------------------------------

The template and the tokenizer see marks in place of private texts until the cut is made. The safe part is what the
template writes of a chat that ends there. Where it writes something else as soon as more follows, as one does that puts
the last message first, nothing is safe. So the safe tokens do not depend on what is private, how much or in how many
parts, nor on anything after it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

from outrider_client.core.prompt import (
    Content,
    PlainMessage,
    Prompt,
    PromptMessage,
    Raw,
    Segment,
    as_segments,
    has_private,
    plain_prompt,
    segments_of,
)
from outrider_client.models.tokenizer import TargetTokenizer
from outrider_proto.errors import UsageError

_PRIVATE_USE = frozenset(map(chr, range(0xE000, 0xF900)))  # no template or case rule changes these


@dataclass(frozen=True, slots=True, repr=False)
class PrivateSplit:
    """Tokens that may be sent, possibly none, and those that may not. The repr shows neither."""

    safe: tuple[int, ...]
    rest: tuple[int, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        return self.safe + self.rest


def split(prompt: Prompt, codec: TargetTokenizer, *, raw: Raw) -> PrivateSplit:
    """Split at the first private segment. Raises UsageError if the chat template drops a segment."""
    safe, rest = _parts(prompt, codec, raw)
    if not raw and not isinstance(prompt, str):
        try:
            alone, _ = _parts(_begin(prompt), codec, raw)
        except UsageError:  # a template may refuse it, or leave the mark out
            alone = ""
        safe, rest = (alone, rest) if alone == safe else ("", safe + rest)
    first = codec.encode(safe) if raw and safe else codec.encode_part(safe)
    return PrivateSplit(tuple(first), tuple(codec.encode_part(rest)))


def _begin(prompt: Prompt) -> Prompt:
    """Return a prompt of segments or messages as far as its first private segment, which is empty."""
    begun: list[PromptMessage | int | Segment] = []
    for item in prompt:
        assert not isinstance(item, str)  # a prompt of text has no private segment
        if isinstance(item, Segment) and item.private:
            return [*begun, Segment("", private=True)]
        if not isinstance(item, Segment | int) and has_private(item["content"]):
            before = takewhile(lambda segment: not segment.private, as_segments(item["content"]))
            end = PromptMessage(role=item["role"], content=(*before, Segment("", private=True)))
            if "tool_call_id" in item:  # calls come after a message's text, an id before it
                end["tool_call_id"] = item["tool_call_id"]
            return [*begun, end]
        begun.append(item)
    return begun


def _parts(prompt: Prompt, codec: TargetTokenizer, raw: Raw) -> tuple[str, str]:
    """Return the text before the first mark, and the rest with the private texts in it. Raises UsageError."""
    marks = _Marks((segment.text for segment in segments_of(prompt)), str if raw is True else codec.control.apart)
    marked = plain_prompt(prompt, marks.write)
    if isinstance(marked, str) and raw:
        rendered = marked if raw is True else codec.control.guarded(marked)
    else:
        turns = [PlainMessage(role="user", content=marked)] if isinstance(marked, str) else marked
        rendered = codec.render([turn for turn in turns if not isinstance(turn, int)])
    return marks.cut(rendered)


class _Marks:
    """Marks that replace private texts, made of a character that occurs in no text."""

    def __init__(self, texts: Iterable[str], apart: Callable[[str], str]) -> None:
        used = set().union(*texts)
        free = tuple(_PRIVATE_USE - used)
        if not free:
            raise UsageError("prompt has every character of Unicode's private use area: leave one out")
        # By chance: the first that is free would tell a template something of the private texts.
        self._mark = secrets.choice(free)
        self._private: list[str] = []
        self._apart = apart

    def write(self, content: Content) -> str:
        return "".join(self._marked(segment.text) if segment.private else segment.text
                       for segment in as_segments(content))  # fmt: skip

    def cut(self, rendered: str) -> tuple[str, str]:
        """Return the text before the first mark, and the rest with the private texts restored. Raises UsageError."""
        if {int(mark[1]) for mark in self._pattern.finditer(rendered)} != set(range(len(self._private))):
            raise UsageError("the chat template leaves out a private segment: give the prompt raw, or mark other text")
        # Spaces before the cut belong to the rest: models write a word together with the space before it.
        safe = rendered[: rendered.index(self._mark)].rstrip(" ")
        return safe, self._pattern.sub(lambda mark: self._private[int(mark[1])], rendered[len(safe) :])

    def _marked(self, text: str) -> str:
        self._private.append(self._apart(text))
        return f"{self._mark}{len(self._private) - 1}{self._mark}"

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(f"{self._mark}([0-9]+){self._mark}")
