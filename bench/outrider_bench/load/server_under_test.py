"""The server under load: one that is started and can be killed, or one that runs already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

from outrider_bench.core.processes import ServerProcess
from outrider_bench.load.measures.pass_samples import PassSamples, scrape
from outrider_bench.load.measures.process_use import ProcessUse, on_cores
from outrider_proto.errors import UsageError

PASS_METRICS = (
    "outrider_iteration_tokens_total",
    "outrider_batch_sessions",
    "outrider_pass_seconds",
    "outrider_prefix_cache",
)


class ServerUnderTest:
    """The server under load; `process` is None for one that runs already."""

    def __init__(self, address: str, process: ServerProcess | None, cores: Sequence[int] = ()) -> None:
        self.address = address
        self.num_starts = 1
        self._process = process
        self._cores = cores

    @property
    def pid(self) -> int | None:
        """The process id; None for a server that runs already."""
        return None if self._process is None else self._process.pid

    @property
    def use(self) -> ProcessUse:
        """Resource use; zeros for a server that runs already."""
        return ProcessUse() if self._process is None else ProcessUse.of(self._process.pid)

    async def passes(self) -> PassSamples:
        """Scrape its metrics, if it has any."""
        return await scrape(None if self._process is None else self._process.metrics, PASS_METRICS)

    async def kill(self) -> None:
        """Kill the server with SIGKILL, restart it at the same address, and wait until it serves."""
        if self._process is None:
            raise UsageError("kills: only a server that this command started can be killed; leave --server out")
        # In a thread, since starting a server takes seconds and the clients' answers arrive meanwhile.
        await asyncio.to_thread(self._restart, self._process)
        self.num_starts += 1

    def _restart(self, process: ServerProcess) -> None:
        process.kill()
        with on_cores(self._cores):
            process.start()
        process.wait_ready()


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
        yield ServerUnderTest(process.address, process, cores)
