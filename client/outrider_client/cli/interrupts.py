"""What Ctrl-C does to a command before it is at work."""

from __future__ import annotations

import os
import signal
from types import FrameType


def leave_on_interrupt() -> None:
    """Have Ctrl-C end this process at once with 130, unless it is ignored, as in jobs that a shell starts with &."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_on_interrupt() -> None:
    """Have it raise KeyboardInterrupt again. A command calls this once all is imported that it needs."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    # No exception: torch and others, while they are imported, make another one of it, or pass over it.
    os._exit(130)
