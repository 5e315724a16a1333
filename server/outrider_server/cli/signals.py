"""What makes a server stop: SIGINT or SIGTERM, and a second one when it takes too long."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine


class StopSignals:
    """Listens from the moment it is made, on the running loop. SIGHUP, which would end the process, is only ignored:
    certificates and keys are read again whenever their files change."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._came)
        loop.add_signal_handler(signal.SIGHUP, lambda: None)

    async def unless_second(self, work: Coroutine[None, None, None]) -> None:
        """Do it, or break it off at the second signal."""
        working, hurry = asyncio.ensure_future(work), asyncio.ensure_future(self.second.wait())
        try:
            await asyncio.wait((working, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, hurry):
                task.cancel()
            await asyncio.gather(working, hurry, return_exceptions=True)
        if not working.cancelled():
            working.result()

    def _came(self) -> None:
        (self.second if self.first.is_set() else self.first).set()
