"""Run one task over a real link: the engine here, both of the link's ends in a worker process.

kernel, tun     client socket in A --link-- server socket in B        no splice: the only TCP is the link's own
proxy           client --loopback-- relay --loopback-- server         through the link's address, as programs do
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from outrider_netsim.core.addresses import parse_address
from outrider_netsim.core.engine_names import EngineName
from outrider_netsim.core.errors import EngineError
from outrider_netsim.link import Link
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.transfers.plan import Samples, TransferPlan, TransferTask

Json = dict[str, Any]  # what json.loads gives

LOOPBACK = "127.0.0.1"
BACKLOG = 128
LINE_BYTES = 1 << 26  # of the samples, which arrive as one line


@dataclass(frozen=True, slots=True)
class LinkSockets:
    """Unconnected clients, the address to which they connect, and where their connections arrive."""

    address: tuple[str, int]
    listener: socket.socket
    clients: tuple[socket.socket, ...]


async def take_really(
    task: TransferTask, profile: Profile, plan: TransferPlan, seed: int, engine: EngineName
) -> Samples:
    """Run one task over a new link of `profile`, which is used as it is.

    Raises EngineError when this machine cannot run the engine, or measuring fails.
    """
    with contextlib.ExitStack() as sockets:
        upstream = sockets.enter_context(socket.create_server((LOOPBACK, 0), backlog=BACKLOG))
        address = f"{LOOPBACK}:{upstream.getsockname()[1]}"
        async with Link(profile, address, engine, seed, congestion=plan.congestion) as link:
            ends = await open_ends(link, upstream, plan.connections(task))
            for end in (ends.listener, *ends.clients):
                sockets.enter_context(end)
            return await _worked(link, ends, {"task": asdict(task), "plan": asdict(plan)})


async def open_ends(link: Link, upstream: socket.socket, connections: int) -> LinkSockets:
    """Open the sockets of both ends; `upstream` is what the link's address leads to."""
    if link.namespaces is None:
        clients = tuple(socket.socket() for _ in range(connections))
        return LinkSockets(parse_address("link", link.address), upstream, clients)
    # A namespace may refuse a congestion control as its default that its sockets may choose.
    listener = await link.namespaces.listener("B", LINK_ADDRESSES["B"], congestion=link.congestion)
    near = [await link.namespaces.socket("A", congestion=link.congestion) for _ in range(connections)]
    return LinkSockets(listener.getsockname(), listener, tuple(near))


async def _worked(link: Link, ends: LinkSockets, job: Json) -> Samples:
    """Have a worker do `job`, and change the link when it asks."""
    job |= {
        "address": ends.address,
        "listener": ends.listener.fileno(),
        "clients": [client.fileno() for client in ends.clients],
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider_netsim.transfers.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=[job["listener"], *job["clients"]],
        limit=LINE_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _write(process.stdin, job)
        while line := await process.stdout.readline():
            message = json.loads(line)
            if "samples" in message:
                samples: Samples = message["samples"]
                return samples
            if "error" in message:
                raise EngineError(message["error"])
            _change(link, message["change"])
            _write(process.stdin, {"at": time.monotonic()})
        raise EngineError("the process that measures has failed: see its message above, and try again")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _change(link: Link, change: str) -> None:
    if change == "cut":
        link.cut()
    else:
        link.restore()


def _write(stdin: asyncio.StreamWriter, message: Json) -> None:
    stdin.write(json.dumps(message).encode() + b"\n")
