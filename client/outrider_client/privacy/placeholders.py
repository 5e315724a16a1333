"""Typed placeholders in place of private values: [EMAIL_1] for the first that is called EMAIL, and so on.

One table serves a conversation: the same value keeps its number, and once it was private it is so wherever it stands as
words of its own, and anywhere in an earlier answer, which the target wrote around the placeholder.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from outrider_client.core.prompt import PlainPrompt, Prompt, plain_prompt, segments_of
from outrider_client.core.prompt_segments import DEFAULT_KIND, Content, Segment, as_segments


class Placeholders:
    """Values stay here; nothing of this is written anywhere."""

    def __init__(self) -> None:
        self._of_value: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    @property
    def values(self) -> Mapping[str, str]:
        """By placeholder."""
        return {placeholder: value for value, placeholder in self._of_value.items()}

    def replace(self, prompt: Prompt) -> PlainPrompt:
        """The prompt without its private values."""
        segments = tuple(segments_of(prompt))
        safe = "\n".join(segment.text for segment in segments if not segment.private)
        self._give_up_what_stands_in(safe)
        self._assign((segment for segment in segments if segment.private), safe)
        return plain_prompt(prompt, self._write, self._recall)

    def _give_up_what_stands_in(self, safe: str) -> None:
        """A placeholder that the caller's own text holds means something else there."""
        self._of_value = {value: name for value, name in self._of_value.items() if name not in safe}

    def _assign(self, private: Iterable[Segment], safe: str) -> None:
        for segment in private:
            if segment.text not in self._of_value:
                self._of_value[segment.text] = self._free(segment.kind or DEFAULT_KIND, safe)

    def _free(self, kind: str, safe: str) -> str:
        while True:
            self._numbers[kind] += 1
            placeholder = f"[{kind}_{self._numbers[kind]}]"
            if placeholder not in safe:
                return placeholder

    def _write(self, content: Content) -> str:
        return self._placed(content, r"(?<!\w){}(?!\w)")

    def _recall(self, content: Content) -> str:
        """As `_write`, an earlier answer: values stand there with whatever the target wrote around a placeholder."""
        return self._placed(content, "{}")

    def _placed(self, content: Content, where: str) -> str:
        segments = as_segments(content)
        return "".join(
            self._of_value[each.text] if each.private else self._hidden(each.text, where) for each in segments
        )

    def _hidden(self, safe: str, where: str) -> str:
        """Also what is private elsewhere."""
        known = sorted((value for value in self._of_value if value.strip()), key=len, reverse=True)
        if not known:
            return safe
        values = "|".join(re.escape(value) for value in known)
        return re.sub(where.format(f"(?:{values})"), lambda found: self._of_value[found[0]], safe)
