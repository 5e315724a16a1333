"""Private values put back into an answer over placeholders, as its text comes and goes.

What is shown is a function of the text so far: every whole placeholder in it becomes its value, and an end of it that
may be the beginning of one is held back.

    text so far     Write to [EMAIL_1] or [EMA      (the next token may be IL_2])
    shown           Write to a@b.c or
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol


class TokenText(Protocol):
    """An answer's tokens as text; see detokenizer.Detokenizer."""

    @property
    def text(self) -> str: ...

    def push(self, tokens: Sequence[int]) -> str: ...

    def roll_back(self, num_tokens: int) -> str: ...

    def finish(self) -> str: ...


class PlaceholderRestorer:
    """The same, with values in place of placeholders."""

    def __init__(self, text: TokenText, values: Mapping[str, str]) -> None:
        self._inner = text
        self._values = dict(values)
        self._pattern = re.compile("|".join(re.escape(name) for name in self._values) or "(?!)")
        self._beginnings = {name[:end] for name in self._values for end in range(1, len(name))}
        self._longest = max(map(len, self._values), default=0)
        self._shown = ""

    @property
    def text(self) -> str:
        """All that is out."""
        return self._shown

    def push(self, tokens: Sequence[int]) -> str:
        self._inner.push(tokens)
        return self._show(self._whole())

    def roll_back(self, num_tokens: int) -> str:
        """What is shown may shrink by more than those tokens brought: a value goes with its placeholder's last one."""
        self._inner.roll_back(num_tokens)
        before, self._shown = self._shown, self._restore(self._whole())
        return before[len(self._shown) :]

    def finish(self) -> str:
        self._inner.finish()
        return self._show(self._inner.text)

    def _show(self, text: str) -> str:
        before, self._shown = self._shown, self._restore(text)
        return self._shown[len(before) :]

    def _restore(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._values[found[0]], text)

    def _whole(self) -> str:
        """The text without an end that may begin a placeholder."""
        text = self._inner.text
        held = next(
            (size for size in range(min(self._longest, len(text)), 0, -1) if text[-size:] in self._beginnings), 0
        )
        return text[: len(text) - held]
