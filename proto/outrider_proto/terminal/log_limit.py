"""A limit on what strangers can write into a log."""

from __future__ import annotations

import logging
import time
from typing import Final

BY_STRANGERS: Final = "by_strangers"  # key in logging's `extra`: whoever reaches the port can cause the message
_LINES_A_SECOND = 10


class LogLimit(logging.Filter):
    """Lets through so many lines a second of all loggers that have it; the first one after that counts the others.

    For loggers whose lines strangers cause. Knows nothing of levels.
    """

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._num_lines = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line of strangers may be written."""
        second = int(time.monotonic())
        num_dropped = 0
        if second != self._second:
            num_dropped = max(self._num_lines - _LINES_A_SECOND, 0)
            self._second, self._num_lines = second, 0
        self._num_lines += 1
        if num_dropped:
            record.msg, record.args = f"{record.getMessage()} (and {num_dropped} lines before it, left out)", None
        return self._num_lines <= _LINES_A_SECOND
