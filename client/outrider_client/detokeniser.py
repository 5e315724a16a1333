"""Tokens to text as they come. A byte-level token may end within a character: such text is held back until it is whole.

Each token's text is decoded with the tokens of the last two boundaries before it, since decoders look at neighbours
(spaces, merged bytes). A frame per token remembers where that stood, so that a rollback only pops frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class _Frame:
    """After some token: text of tokens before `shown` is out, and `context` is where its decoding begins."""

    context: int
    shown: int
    num_chars: int


class Detokeniser:
    """The text of one answer."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._frames = [_Frame(0, 0, 0)]
        self._text = ""

    @property
    def text(self) -> str:
        """All that is out."""
        return self._text

    def push(self, tokens: Sequence[int]) -> str:
        """Append tokens; returns the text that this brings out."""
        before = len(self._text)
        for token in tokens:
            self._push(token)
        return self._text[before:]

    def roll_back(self, num_tokens: int) -> str:
        """Keep the first tokens; returns the text that is taken back."""
        del self._tokens[num_tokens:], self._frames[num_tokens + 1 :]
        keep = self._frames[-1].num_chars
        removed, self._text = self._text[keep:], self._text[:keep]
        return removed

    def finish(self) -> str:
        """What is still held back, with the replacement character where bytes are missing."""
        frame = self._frames[-1]
        held = self._new_text(frame)
        self._text += held
        self._frames[-1] = _Frame(len(self._tokens), len(self._tokens), len(self._text))
        return held

    def _push(self, token: int) -> None:
        frame = self._frames[-1]
        self._tokens.append(token)
        new = self._new_text(frame)
        if new and not new.endswith(REPLACEMENT):
            self._text += new
            frame = _Frame(frame.shown, len(self._tokens), len(self._text))
        self._frames.append(frame)

    def _new_text(self, frame: _Frame) -> str:
        known = self._decode(self._tokens[frame.context : frame.shown])
        return self._decode(self._tokens[frame.context :])[len(known) :]
