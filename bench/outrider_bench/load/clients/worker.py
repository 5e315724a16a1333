"""A worker process that runs some of the clients.

It sends READY, runs its clients from the window that it gets until all is asked, the window ends or None comes, and
sends their counters. The end of the pipe is as None: whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from outrider_bench.load.clients.client import CountingWindow, LoadClient
from outrider_bench.load.clients.counters import ClientCounters
from outrider_bench.load.clients.drafting import ReplayDrafter, ReplayDrafting, probability_for
from outrider_bench.load.clients.settings import ClientSettings
from outrider_bench.load.clients.texts import read_texts
from outrider_client.connection.access import KEY_VARIABLE
from outrider_client.connection.policy import Patience, Timeouts
from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_netsim import Link, profile_named

READY = "ready"
WAIT_FOR_LINK_S = 120.0
_TIMEOUTS = Timeouts(connect_s=30.0, reconnect_s=5.0)  # many clients share a core here: each takes longer to connect
_Commands = asyncio.Queue[CountingWindow | None]


@dataclass(frozen=True, slots=True)
class Assignment:
    """The clients `numbers` out of `num_clients`, to be run on `cores` (empty: anywhere)."""

    settings: ClientSettings
    server: str
    texts: Path
    numbers: tuple[int, ...]
    num_clients: int
    cores: tuple[int, ...] = ()


def work(assignment: Assignment, pipe: Connection) -> None:
    """Run the clients: all that a worker process does."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the command that started us, which sends None
        signal.signal(number, signal.SIG_IGN)
    if assignment.cores:
        # Before gRPC starts its threads, which inherit the cores.
        os.sched_setaffinity(0, assignment.cores)
    torch.set_num_threads(1)
    asyncio.run(_work(assignment, pipe))


async def _work(assignment: Assignment, pipe: Connection) -> None:
    commands = _Commands()
    # A daemon: nothing wakes a thread that waits for a pipe.
    threading.Thread(target=_listen, args=(pipe, asyncio.get_running_loop(), commands), daemon=True).start()
    counters = [ClientCounters(number) for number in assignment.numbers]
    async with _link_to(assignment) as server:
        window = CountingWindow()
        clients = _clients(assignment, server, window, counters)
        pipe.send(READY)
        if (begun := await commands.get()) is not None:
            window.begin, window.end = begun.begin, begun.end
            await _play(clients, window, commands)
    with suppress(OSError):
        pipe.send(counters)


def _listen(pipe: Connection, loop: asyncio.AbstractEventLoop, commands: _Commands) -> None:
    with suppress(RuntimeError):  # the loop has been closed
        try:
            while True:
                loop.call_soon_threadsafe(commands.put_nowait, pipe.recv())
        except (EOFError, OSError):
            loop.call_soon_threadsafe(commands.put_nowait, None)


@asynccontextmanager
async def _link_to(assignment: Assignment) -> AsyncIterator[str]:
    """Yield the address that the clients connect to: the server's, or that of this worker's own link to it."""
    settings = assignment.settings
    if settings.profile is None:
        yield assignment.server
        return
    seed = settings.seed + assignment.numbers[0]
    async with Link(profile_named(settings.profile), assignment.server, "proxy", seed) as link:
        yield link.address


async def _play(clients: list[LoadClient], window: CountingWindow, commands: _Commands) -> None:
    running = [asyncio.create_task(client.run(), name=f"client {client.counters.client}") for client in clients]
    stopped = asyncio.create_task(commands.get())
    everything = asyncio.gather(*running)
    # loop.time() is time.monotonic(), in which the window is given.
    timeout = None if window.end == float("inf") else max(0.0, window.end - asyncio.get_running_loop().time())
    await asyncio.wait((everything, stopped), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if not everything.done():
        everything.cancel()
    # Waits for canceled clients as well: they still count what they have received.
    results = await asyncio.gather(*running, return_exceptions=True)
    stopped.cancel()
    for result in results:
        if isinstance(result, Exception):
            raise result


def _clients(
    assignment: Assignment, server: str, window: CountingWindow, client_counters: list[ClientCounters]
) -> list[LoadClient]:
    settings = assignment.settings
    access = settings.access
    if access.key_file is None:  # which may be meant for another server than the variable
        access = replace(access, key=os.environ.get(KEY_VARIABLE) or None)
    config = ClientConfig(
        server=server,
        access=access if server == assignment.server else access.through(assignment.server),
        target=settings.target,
        drafter=settings.drafter,
        mode=settings.mode,
        shape=settings.shape,
        max_new_tokens=settings.limit,
        on_reconnect="verify",
        wait_for_link_s=WAIT_FOR_LINK_S,
        threads=1,
        timeouts=_TIMEOUTS,
        opening=settings.kind == "real",
        patience=Patience(floor_s=settings.link_floor_s),
    )
    models, texts = LocalModels.load(config), read_texts(assignment.texts)
    habits, drafting_of = settings.habits, None
    if habits.rate is not None:
        habits = replace(habits, rate=habits.rate / assignment.num_clients)
    if settings.kind == "replay":
        assert models.drafter is not None
        replayed = ReplayDrafter(models.drafter)
        models = replace(models, drafter=replayed)
        probability = probability_for(settings.tau, settings.shape.levels)
        drafting_of = partial(ReplayDrafting, replayed, probability, draft_s=settings.draft_s)
    clients = []
    for counters in client_counters:
        # By client, not by worker: requests are the same for any number of workers.
        generator = random.Random(f"{settings.seed}/{counters.client}")
        drafting = None if drafting_of is None else partial(drafting_of, generator)
        clients.append(LoadClient(counters, window, habits, config, models, texts, generator, drafting))
    return clients
