"""An operation that code samples are composed of: how it is asked for, written in Python, and computed.

The computation is independent of the written line, so that a reference answer passing its tests says something.
`{k}` in a phrase or line is a small number named by the prompt, `{c}` a letter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Op:
    """`phrases[0]` is also the wording of the docstring; `line` is the right side of `result = ...` or `return ...`."""

    key: str
    phrases: tuple[str, ...]
    line: str
    run: Callable[[Any, Any], Any]  # Any: the value's type is the kind's, list or text or number


def op(key: str, phrases: str, line: str, run: Callable[[Any, Any], Any]) -> Op:  # Any: as above
    """An operation whose phrases are separated by ` | `."""
    return Op(key, tuple(phrases.split(" | ")), line, run)
