"""Incremental detokenization. Text that ends within a character is held back until the character is complete.

Tokens that arrive together are decoded together. A frame records the state after each step: a rollback pops frames and
decodes again what is left of the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

REPLACEMENT = "\ufffd"
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class _Frame:
    """State after `num_tokens`: tokens before `shown` are decoded; decoding starts at `context`."""

    num_tokens: int
    context: int
    shown: int
    num_chars: int


class Detokenizer:
    """Turns the tokens of one answer into text as they arrive."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._frames = [_Frame(0, 0, 0, 0)]
        self._text = ""

    @property
    def text(self) -> str:
        """The text so far, without what is held back."""
        return self._text

    def push(self, tokens: Sequence[int]) -> str:
        """Append tokens and return the new text."""
        before = len(self._text)
        if tokens and not self._push(tokens):
            for token in tokens:
                if not self._push((token,)):
                    self._hold(token)
        return self._text[before:]

    def roll_back(self, num_tokens: int) -> str:
        """Keep the first `num_tokens` and return the text that is removed."""
        before = self._text
        while self._frames[-1].num_tokens > num_tokens:
            self._frames.pop()
        frame = self._frames[-1]
        again = self._tokens[frame.num_tokens : num_tokens]
        del self._tokens[frame.num_tokens :]
        self._text = before[: frame.num_chars]
        self.push(again)
        return before[len(self._text) :]

    def finish(self) -> str:
        """Return the text still held back, with the replacement character where bytes are missing."""
        frame = self._frames[-1]
        rest = self._new_text(frame)
        self._text += rest
        end = len(self._tokens)
        self._frames[-1] = _Frame(end, end, end, len(self._text))
        return rest

    def _push(self, tokens: Sequence[int]) -> bool:
        """Append tokens that end at a character's end; return False and change nothing if they do not."""
        frame = self._frames[-1]
        new = self._new_text(frame, tokens)
        if not new or new.endswith(REPLACEMENT):
            return False
        self._text += new
        self._tokens += tokens
        self._frames.append(_Frame(len(self._tokens), frame.shown, len(self._tokens), len(self._text)))
        return True

    def _hold(self, token: int) -> None:
        self._tokens.append(token)
        self._frames.append(replace(self._frames[-1], num_tokens=len(self._tokens)))

    def _new_text(self, frame: _Frame, tokens: Sequence[int] = ()) -> str:
        # Decoders look at neighbors (spaces, merged bytes), so new tokens are decoded with those of the last two
        # boundaries before them, and the known text is cut off again. Decoding them alone gives other text.
        known = self._decode(self._tokens[frame.context : frame.shown])
        return self._decode([*self._tokens[frame.context :], *tokens])[len(known) :]
