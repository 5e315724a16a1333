"""The server under load, one that is started or one that runs already, and what its metrics say of its passes."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager

from outrider_bench.core.processes import ProcessUse, ServerProcess, on_cores

_PASS_METRICS = (
    "outrider_iteration_tokens_total",
    "outrider_batch_sessions",
    "outrider_pass_seconds",
    "outrider_prefix_cache",
)
_SCRAPE_TIMEOUT_S = 5.0


class ServerUnderTest:
    """The server under load; `process` is None for one that runs already."""

    def __init__(self, address: str, process: ServerProcess | None) -> None:
        self.address = address
        self.process = process

    @property
    def use(self) -> ProcessUse:
        """Resource use; zeros for a server that runs already."""
        return ProcessUse() if self.process is None else ProcessUse.of(self.process.pid)

    async def passes(self) -> dict[str, float]:
        """Scrape its metrics of passes; a server that runs already has none."""
        if self.process is None or self.process.metrics is None:
            return {}
        return parse(await asyncio.to_thread(_fetch, self.process.metrics), _PASS_METRICS)


@asynccontextmanager
async def server_under_test(
    address: str | None, options: Sequence[str], cores: Sequence[int]
) -> AsyncIterator[ServerUnderTest]:
    """Use the server at `address`, or start one with `options` on `cores`. Raises UsageError."""
    if address is not None:
        yield ServerUnderTest(address, None)
        return
    process = ServerProcess(["--metrics-port", "0", *options])
    with ExitStack() as stack:
        # Pushed but not entered: __enter__ waits for the server, and would block the event loop.
        stack.push(process)
        with on_cores(cores):
            process.start()
        await asyncio.to_thread(process.wait_ready)
        yield ServerUnderTest(process.address, process)


def parse(text: str, names: tuple[str, ...]) -> dict[str, float]:
    """Return the samples whose names begin with one of `names`, `_created` excepted."""
    # `_created` is a time of day: a difference of two means nothing.
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines if name.startswith(names) and "_created" not in name}


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _fetch(address: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_SCRAPE_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return ""
