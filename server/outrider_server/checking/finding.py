"""Results of checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from outrider_proto.errors import OutriderError

Verdict = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `subject` as in the configuration."""

    subject: str
    verdict: Verdict
    text: str


def found(subject: str, look: Callable[[], str]) -> Finding:
    """Return the result of `look` as a finding; one of our own errors becomes a finding, too."""
    try:
        return Finding(subject, "ok", look())
    except OutriderError as error:
        return Finding(subject, "error", str(error))
