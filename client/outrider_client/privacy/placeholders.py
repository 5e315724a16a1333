"""Replaces private values by typed placeholders: [EMAIL_1] for the first value of kind EMAIL, and so on.

One table serves a conversation: a value keeps its number. A value that was private once is replaced wherever it occurs
as whole words, and anywhere in an earlier answer, where the target wrote text around its placeholder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from outrider_client.core.prompt import (
    DEFAULT_KIND,
    Content,
    PlainPrompt,
    Prompt,
    as_segments,
    plain_prompt,
    segments_of,
)


class Placeholders:
    """The table of values and placeholders, kept in memory only."""

    def __init__(self) -> None:
        self._of_value: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    @property
    def values(self) -> Mapping[str, str]:
        """Private values by placeholder."""
        return {placeholder: value for value, placeholder in self._of_value.items()}

    def replace(self, prompt: Prompt) -> PlainPrompt:
        """Return the prompt with placeholders in place of its private values."""
        segments = tuple(segments_of(prompt))
        safe = "\n".join(segment.text for segment in segments if not segment.private)
        # In the caller's own text a placeholder means something else.
        self._of_value = {value: name for value, name in self._of_value.items() if name not in safe}
        for segment in segments:
            if segment.private and segment.text not in self._of_value:
                self._of_value[segment.text] = self._new_placeholder(segment.kind or DEFAULT_KIND, safe)
        # In an earlier answer a value may be part of a word that the target wrote.
        return plain_prompt(
            prompt,
            lambda content: self._replace_values(content, r"(?<!\w){}(?!\w)"),
            lambda content: self._replace_values(content, "{}"),
        )

    def _new_placeholder(self, kind: str, safe: str) -> str:
        while True:
            self._numbers[kind] += 1
            placeholder = f"[{kind}_{self._numbers[kind]}]"
            if placeholder not in safe:
                return placeholder

    def _replace_values(self, content: Content, where: str) -> str:
        return "".join(
            self._of_value[each.text] if each.private else self._hide_known_values(each.text, where)
            for each in as_segments(content)
        )

    def _hide_known_values(self, safe: str, where: str) -> str:
        """Replace values in safe text that are private elsewhere in the conversation."""
        # Longest first: a value may be part of another one.
        spread = sorted((value for value in self._of_value if value.strip()), key=len, reverse=True)
        if not spread:
            return safe
        values = "|".join(re.escape(value) for value in spread)
        return re.sub(where.format(f"(?:{values})"), lambda match: self._of_value[match[0]], safe)
