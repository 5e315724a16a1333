"""The server under load: a process of our own, which can be killed and comes back, or one that runs already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

from outrider_bench.core.processes import ServerProcess
from outrider_bench.load.measures.pass_metrics import PassMetrics, scrape
from outrider_bench.load.measures.process_use import ProcessUse, on_cores
from outrider_proto.errors import UsageError

PASS_METRICS = (
    "outrider_iteration_tokens_total",
    "outrider_batch_sessions",
    "outrider_pass_seconds",
    "outrider_prefix_cache",
)


class ServerUnderTest:
    """`process` is None for a server that others started."""

    def __init__(self, address: str, process: ServerProcess | None, cores: Sequence[int] = ()) -> None:
        self.address = address
        self.lives = 1
        self._process = process
        self._cores = cores

    @property
    def pid(self) -> int | None:
        """None where it is not known."""
        return None if self._process is None else self._process.pid

    @property
    def use(self) -> ProcessUse:
        """Zeros where it cannot be known."""
        return ProcessUse() if self._process is None else ProcessUse.of(self._process.pid)

    async def passes(self) -> PassMetrics:
        """What its metrics say, if it has any."""
        return await scrape(None if self._process is None else self._process.metrics, PASS_METRICS)

    async def kill(self) -> None:
        """SIGKILL, and start it again at the same address; returns when it serves."""
        if self._process is None:
            raise UsageError("kills: only a server that this command started can be killed; leave --server out")
        await asyncio.to_thread(self._restart, self._process)
        self.lives += 1

    def _restart(self, process: ServerProcess) -> None:
        process.kill()
        with on_cores(self._cores):
            process.start()
        process.wait_ready()


@asynccontextmanager
async def server_under_test(
    address: str | None, options: Sequence[str], cores: Sequence[int]
) -> AsyncIterator[ServerUnderTest]:
    """The server at `address`, or one of our own with those options on those cores. Raises UsageError."""
    if address is not None:
        yield ServerUnderTest(address, None)
        return
    process = ServerProcess(["--metrics-port", "0", *options])
    with ExitStack() as stack:
        stack.push(process)
        with on_cores(cores):
            process.start()
        await asyncio.to_thread(process.wait_ready)
        yield ServerUnderTest(process.address, process, cores)
