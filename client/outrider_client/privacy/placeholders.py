"""Replaces private values by typed placeholders: [EMAIL_1] for the first value of kind EMAIL, and so on.

One table serves a conversation: a value keeps its number. A value that was private once is replaced wherever it occurs
as whole words, however it is spelled there, and anywhere in an earlier answer, where the target wrote text around its
placeholder.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from outrider_client.core.prompt import (
    DEFAULT_KIND,
    Content,
    PlainPrompt,
    Prompt,
    as_segments,
    plain_prompt,
    segments_of,
)
from outrider_client.privacy.spellings import PrivateValue, in_json, without
from outrider_proto.errors import UsageError
from outrider_proto.files import parse_json

_MORE = {"tool_calls", "tool_call_id"}  # of a message, beside its content
_MAX_VALUES = 1000  # of a conversation: each is looked for in all of its text
_MAX_CHARS = 2**21  # of a text that they are looked for in


@dataclass(frozen=True, slots=True, repr=False)
class Hidden:
    """A prompt and a JSON schema without private values, and what an answer's placeholders stand for."""

    prompt: PlainPrompt
    json_schema: str
    values: Mapping[str, str]


class Placeholders:
    """The table of values and placeholders, kept in memory only."""

    def __init__(self) -> None:
        self._of_value: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()  # answers are prepared side by side

    def hidden(self, prompt: Prompt, json_schema: str) -> Hidden:
        """Replace the private values in all that is sent for an answer."""
        with self._lock:
            plain, schema, values = self.replace(prompt), self.hide_in_schema(json_schema), self.values
        return Hidden(plain, schema, as_in_json(values) if schema else values)

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
        if len(self._of_value) > _MAX_VALUES:
            raise UsageError(f"prompt has over {_MAX_VALUES:,} different private texts: mark longer ones, or fewer")
        # In an earlier answer a value may be part of a word that the target wrote.
        plain = plain_prompt(
            prompt,
            lambda content: self._replace_values(content, whole_words=True),
            lambda content: self._replace_values(content, whole_words=False),
        )
        for item in plain if isinstance(plain, list) else ():
            if not isinstance(item, int):
                item.update(in_json({name: value for name, value in item.items() if name in _MORE}, self.hide))
        return plain

    def hide(self, text: str) -> str:
        """Return a text with placeholders in place of the values that are private elsewhere in the conversation."""
        return self._hide_known_values(text, whole_words=True)

    def hide_in_schema(self, schema: str) -> str:
        """Return a JSON schema with placeholders in place of private values.

        Raises UsageError for one in a pattern, where a placeholder would mean something else.
        """
        if not self._of_value or not schema:
            return schema
        given = parse_json(schema, "json_schema")
        self._check_schema(given)
        # Written anew, whatever was hidden: its text may name a thing twice.
        return json.dumps(in_json(given, self.hide), ensure_ascii=False)

    def _check_schema(self, schema: Any) -> None:  # Any: whatever JSON holds
        """Raise UsageError where a placeholder would mean something else: in patterns, or for numbers."""
        patterns: list[str] = []
        if isinstance(schema, dict):
            named = schema.get("patternProperties")
            patterns = [*map(str, (schema.get("pattern", ""), *(named if isinstance(named, dict) else ())))]
            schema = list(schema.values())
        for each in schema if isinstance(schema, list) else ():
            if isinstance(each, int | float):
                patterns.append(str(each))
            else:
                self._check_schema(each)
        if any(self._hide_known_values(each, whole_words=False) != each for each in patterns):
            raise UsageError("json_schema: a pattern or number holds private text: leave it out, or say it otherwise")

    def _new_placeholder(self, kind: str, safe: str) -> str:
        while True:
            self._numbers[kind] += 1
            placeholder = f"[{kind}_{self._numbers[kind]}]"
            if placeholder not in safe:
                return placeholder

    def _replace_values(self, content: Content, *, whole_words: bool) -> str:
        texts: list[str] = []
        # Safe segments side by side are one text: a value may begin in one and end in the next.
        for is_private, segments in groupby(as_segments(content), key=lambda segment: segment.private):
            if is_private:
                texts += [self._of_value[each.text] for each in segments]
            else:
                texts.append(self._hide_known_values("".join(each.text for each in segments), whole_words=whole_words))
        return "".join(texts)

    def _hide_known_values(self, safe: str, *, whole_words: bool) -> str:
        """Replace values in safe text that are private elsewhere in the conversation."""
        values = [PrivateValue(value, name) for value, name in self._of_value.items() if value.strip()]
        if values and len(safe) > _MAX_CHARS:
            raise UsageError(f"prompt has private text beside a text of over {_MAX_CHARS:,} characters: shorten that")
        return without(safe, values, whole_words=whole_words) if values else safe


def as_in_json(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return values as they are written into texts of JSON."""
    return {name: json.dumps(value, ensure_ascii=False)[1:-1] for name, value in values.items()}


def restored(text: str, values: Mapping[str, str]) -> str:
    """Return a text with values in place of their placeholders."""
    return re.sub("|".join(map(re.escape, values)) or "(?!)", lambda found: values[found[0]], text)
