"""A worker process that runs some of the clients, with commands on standard input and answers on standard output.

Both are lines of JSON. It answers `ready`, then what it is asked for, then `result`.

Commands: the Assignment; then {"do": "begin", "begin": T, "end": T}, and any number of
        {"do": "totals" | "cut" | "stop"},
        {"do": "silence", "seconds": S}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from outrider_bench.load.clients.access_json import access_from_json
from outrider_bench.load.clients.client import ClientBehavior, ClientKind, CountingWindow, LoadClient
from outrider_bench.load.clients.drafting import ReplayDrafter, ReplayDrafting, probability_for
from outrider_bench.load.clients.texts import read_texts
from outrider_bench.load.measures.counters import ClientCounters
from outrider_client.connection.policy import Patience, Timeouts
from outrider_client.core.config import ClientConfig, Mode
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_netsim import Link, profile_named
from outrider_proto.addresses import port_of

_MAX_LINE = 1 << 26
WAIT_FOR_LINK_S = 120.0
_TIMEOUTS = Timeouts(connect_s=30.0, reconnect_s=5.0)  # many clients share a core here: each takes longer to connect


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that a worker needs to know.

    It runs the clients `numbers`, out of `num_clients`, on `cores` (empty: anywhere). `profile`: the link in front of
    the server, made by the proxy engine, one per worker; None: no link.
    """

    server: str
    target: str
    drafter: str
    texts: str
    numbers: tuple[int, ...]
    num_clients: int
    seed: int
    habits: ClientBehavior
    kind: ClientKind = "replay"
    mode: Mode = "stop-and-wait"
    shape: TreeShape | None = None
    tau: float = 3.0
    draft_s: float = 0.0
    limit: int = 64
    profile: str | None = None
    link_floor_s: float = Patience().floor_s
    cores: tuple[int, ...] = ()
    access: dict[str, Any] = field(default_factory=dict)  # Any: each option of the connection has its own type

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Assignment:  # Any: JSON
        shape = None if found["shape"] is None else TreeShape(**found["shape"])
        known = {"habits": ClientBehavior(**found["habits"]), "shape": shape}
        return cls(**{**found, **known, "numbers": tuple(found["numbers"]), "cores": tuple(found["cores"])})


class LoadWorker:
    """Runs its clients from `begin` until all is asked, the window ends or it is stopped."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._window = CountingWindow()
        self._counters = [ClientCounters(number) for number in assignment.numbers]
        self._generator = random.Random(f"{assignment.seed}/cuts/{assignment.numbers[0]}")
        self._link: Link | None = None
        self._begun = asyncio.Event()
        self._stopped = asyncio.Event()
        self._silences: set[asyncio.Task[None]] = set()

    async def run(self, commands: AsyncIterator[dict[str, Any]]) -> None:  # Any: JSON
        async with AsyncExitStack() as stack:
            server = await self._open_link(stack)
            clients = _clients(self._assignment, server, self._window, self._counters)
            _send("ready", pid=os.getpid())
            listening = asyncio.create_task(self._listen(commands))
            await self._begun.wait()
            await self._play(clients)
            listening.cancel()
            await asyncio.gather(listening, *self._silences, return_exceptions=True)
        _send("result", client_counters=[counters.to_json() for counters in self._counters])

    async def _open_link(self, stack: AsyncExitStack) -> str:
        """Return the address that the clients connect to."""
        assignment = self._assignment
        if assignment.profile is None:
            return assignment.server
        profile = profile_named(assignment.profile)
        self._link = Link(profile, assignment.server, "proxy", assignment.seed + assignment.numbers[0])
        await stack.enter_async_context(self._link)
        return self._link.address

    async def _play(self, clients: list[LoadClient]) -> None:
        running = [asyncio.create_task(client.run(), name=f"client {client.counters.client}") for client in clients]
        stopped = asyncio.create_task(self._stopped.wait())
        everything = asyncio.gather(*running)
        loop = asyncio.get_running_loop()
        # loop.time() is time.monotonic(), in which the window is given.
        timeout = None if self._window.end == float("inf") else max(0.0, self._window.end - loop.time())
        await asyncio.wait((everything, stopped), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not everything.done():
            everything.cancel()
        # Waits for canceled clients as well: they still count what they have received.
        results = await asyncio.gather(*running, return_exceptions=True)
        stopped.cancel()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _listen(self, commands: AsyncIterator[dict[str, Any]]) -> None:  # Any: JSON
        async for command in commands:
            self._handle(command)
        self._begun.set()  # the command that started us is gone
        self._stopped.set()

    def _handle(self, command: dict[str, Any]) -> None:  # Any: JSON
        match command["do"]:
            case "begin":
                self._window.begin, self._window.end = command["begin"], command["end"] or float("inf")
                self._begun.set()
            case "stop":
                self._stopped.set()
            case "totals":
                client_counters = self._counters
                names = ("answers", "checked", "verdicts", "tokens", "outages", "strays", "lost", "wrong")
                _send(
                    "totals", **{name: sum(getattr(counters, name) for counters in client_counters) for name in names}
                )
            case "cut":
                port = port_of(self._assignment.server if self._link is None else self._link.address)
                _send("cut", done=cut_connection(port, self._generator))
            case "silence":
                task = asyncio.create_task(self._silence(command["seconds"]))
                # The event loop holds tasks only weakly.
                self._silences.add(task)
                task.add_done_callback(self._silences.discard)
            case unknown:
                raise AssertionError(unknown)

    async def _silence(self, seconds: float) -> None:
        """Silence the link of all clients of this worker for `seconds`."""
        assert self._link is not None
        self._link.cut()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._link.restore()
        _send("silence", done=True)


def cut_connection(port: int, generator: random.Random) -> bool:
    """Shut down one connection to that port, chosen at random; False if there is none. Linux only."""
    found = _connections(port)
    try:
        if not found:
            return False
        with contextlib.suppress(OSError):  # it has ended by itself
            generator.choice(found).shutdown(socket.SHUT_RDWR)
        return True
    finally:
        for sock in found:
            sock.close()


def _connections(port: int) -> list[socket.socket]:
    """Duplicate the descriptors of the connections to `port`."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            # A duplicated descriptor shares the connection: shutdown() ends it, close() does not.
            sock = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # gone meanwhile
            continue
        if _peer_port(sock) == port:
            found.append(sock)
        else:
            sock.close()
    return found


def _peer_port(sock: socket.socket) -> int | None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return None
    try:
        return int(sock.getpeername()[1])
    except OSError:
        return None


def _clients(
    assignment: Assignment, server: str, window: CountingWindow, client_counters: list[ClientCounters]
) -> list[LoadClient]:
    access = access_from_json(assignment.access)
    config = ClientConfig(
        server=server,
        access=access if server == assignment.server else access.through(assignment.server),
        target=assignment.target,
        drafter=assignment.drafter,
        mode=assignment.mode,
        shape=assignment.shape,
        max_new_tokens=assignment.limit,
        on_reconnect="verify",
        wait_for_link_s=WAIT_FOR_LINK_S,
        threads=1,
        timeouts=_TIMEOUTS,
        opening=assignment.kind == "real",
        patience=Patience(floor_s=assignment.link_floor_s),
    )
    models, texts = LocalModels.load(config), read_texts(Path(assignment.texts))
    replayed: ReplayDrafter | None = None
    if assignment.kind == "replay":
        assert models.drafter is not None
        replayed = ReplayDrafter(models.drafter)
        models = replace(models, drafter=replayed)
    probability = probability_for(assignment.tau, (assignment.shape or TreeShape()).levels) if replayed else 0.0
    clients = []
    for counters in client_counters:
        # By client, not by worker: requests are the same for any number of workers.
        generator = random.Random(f"{assignment.seed}/{counters.client}")
        drafting = None
        if replayed is not None:
            drafting = partial(ReplayDrafting, replayed, probability, generator, assignment.draft_s)
        habits = _own_share(assignment.habits, assignment.num_clients)
        clients.append(LoadClient(counters, window, habits, config, models, texts, generator, drafting))
    return clients


def _own_share(habits: ClientBehavior, num_clients: int) -> ClientBehavior:
    return habits if habits.rate is None else replace(habits, rate=habits.rate / num_clients)


def _send(what: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"what": what, **more}) + "\n")
    # A pipe is block-buffered: without this the message would wait for others.
    sys.stdout.flush()


async def _lines() -> AsyncIterator[dict[str, Any]]:  # Any: JSON
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def _main() -> None:
    commands = _lines()
    assignment = Assignment.from_json(await anext(commands))
    if assignment.cores:
        # Before gRPC starts its threads, which inherit the cores.
        os.sched_setaffinity(0, assignment.cores)
    await LoadWorker(assignment).run(commands)


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the command that started us, which sends `stop`
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    asyncio.run(_main())
