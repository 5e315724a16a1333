"""How text shows where it comes from: by color, or by marks around it where there are no colors.

accepted green, bonus cyan, unverified yellow {~ ~}, corrected magenta {= =}, private blue {# #}
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from outrider_client.core.answer_text import Span
from outrider_client.display.printable import printable
from outrider_client.text.transcript import Origin

STYLES: dict[Origin, str] = {
    "prompt": "",
    "accepted": "green",
    "bonus": "cyan",
    "corrected": "bold magenta",
    "unverified": "yellow italic",
    "private": "blue",
}
_MARKS: dict[Origin, str] = {"unverified": "~", "corrected": "=", "private": "#"}


def styled(spans: Sequence[Span], console: Console) -> Text:
    """The text of these spans as this console can show it."""
    return marked(spans) if console.no_color or console.color_system is None else colored(spans)


def colored(spans: Sequence[Span]) -> Text:
    text = Text()
    for span in spans:
        text.append(printable(span.text), style=STYLES[span.origin])
    return text


def marked(spans: Sequence[Span]) -> Text:
    """Without colors. What the target has merely approved bears no marks."""
    text = Text()
    for mark, group in groupby(spans, lambda span: _MARKS.get(span.origin, "")):
        said = printable("".join(span.text for span in group))
        text.append(f"{{{mark}{said}{mark}}}" if mark and said else said)
    return text
