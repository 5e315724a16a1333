"""Finds private text by patterns: Microsoft Presidio's recognizers, called one by one.

No language model is used and nothing is downloaded. Text without a fixed form, such as a name, is not found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from outrider_client.core.prompt import Segment
from outrider_proto.errors import UsageError

MIN_SCORE = 0.4  # Presidio's score of a phone number; lower ones are guesses without context


class Detector:
    """Finds e-mail and IP addresses, phone, card and bank account numbers. Raises UsageError without Presidio."""

    def __init__(self) -> None:
        self._recognizers = _recognizers()

    def mark(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Return the same text with everything found in its safe segments marked private."""
        return tuple(part for segment in segments for part in self._parts(segment))

    def _parts(self, segment: Segment) -> Iterator[Segment]:
        if segment.private:
            yield segment
            return
        text, end = segment.text, 0
        for found in self._find(text):
            if found.start > end:
                yield Segment(text[end : found.start])
            yield Segment(text[found.start : found.end], private=True, kind=found.entity_type)
            end = found.end
        if end < len(text):
            yield Segment(text[end:])

    def _find(self, text: str) -> list[Any]:  # Any: Presidio's results, with our kinds
        """Return non-overlapping findings in order; higher scores win, then longer texts."""
        found = []
        for kind, recognizer in self._recognizers.items():
            for result in recognizer.analyze(text, recognizer.supported_entities):
                if result.score >= MIN_SCORE:
                    result.entity_type = kind
                    found.append(result)
        chosen: list[Any] = []  # Any: as above
        for one in sorted(found, key=lambda one: (-one.score, one.start - one.end)):
            if all(one.end <= other.start or other.end <= one.start for other in chosen):
                chosen.append(one)
        return sorted(chosen, key=lambda one: one.start)


def _recognizers() -> dict[str, Any]:  # Any: presidio-analyzer ships no annotations that mypy reads
    try:
        from presidio_analyzer import predefined_recognizers as presidio
        from tldextract import TLDExtract
    except ImportError as error:
        raise UsageError("finding private text needs Presidio: pip install 'outrider[pii]'") from error
    # Presidio logs texts that it cannot validate, and these are private.
    logging.getLogger("presidio-analyzer").disabled = True
    # The list of suffixes that tldextract ships: Presidio's own recognizer would download one.
    suffixes = TLDExtract(cache_dir=None, suffix_list_urls=())

    class OfflineEmail(presidio.EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            return suffixes(pattern_text).fqdn != ""

    return {
        "EMAIL": OfflineEmail(),
        "PHONE": presidio.PhoneRecognizer(),
        "CARD": presidio.CreditCardRecognizer(),
        "IBAN": presidio.IbanRecognizer(),
        "IP": presidio.IpRecognizer(),
    }
