"""Restores private values in place of their placeholders while an answer's text grows and shrinks.

The shown text is a function of the text so far: every complete placeholder becomes its value, and an end that may be
the beginning of one is held back.

    text so far     Write to [EMAIL_1] or [EMA      (the next token may be IL_2])
    shown           Write to a@b.c or
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from outrider_client.text.detokenizer import Detokenizer


class PlaceholderRestorer:
    """Wraps a Detokenizer and puts values in place of placeholders."""

    def __init__(self, text: Detokenizer, values: Mapping[str, str]) -> None:
        self._inner = text
        self._values = dict(values)
        self._pattern = re.compile("|".join(re.escape(name) for name in self._values) or "(?!)")
        self._beginnings = {name[:end] for name in self._values for end in range(1, len(name))}
        self._longest = max(map(len, self._values), default=0)
        self.shown = ""

    def push(self, tokens: Sequence[int]) -> str:
        self._inner.push(tokens)
        return self._show(self._whole())

    def roll_back(self, num_tokens: int) -> str:
        """Keep the first `num_tokens` and return the text that is removed."""
        # The shown text may shrink by more than these tokens brought: a value goes with its placeholder's last token.
        self._inner.roll_back(num_tokens)
        before, self.shown = self.shown, self._restore(self._whole())
        return before[len(self.shown) :]

    def finish(self) -> str:
        self._inner.finish()
        return self._show(self._inner.text)

    def _show(self, text: str) -> str:
        before, self.shown = self.shown, self._restore(text)
        return self.shown[len(before) :]

    def _restore(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._values[found[0]], text)

    def _whole(self) -> str:
        """Return the text without an end that may begin a placeholder."""
        text = self._inner.text
        num_held = next(
            (size for size in range(min(self._longest, len(text)), 0, -1) if text[-size:] in self._beginnings), 0
        )
        return text[: len(text) - num_held]
