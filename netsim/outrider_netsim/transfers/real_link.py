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
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from outrider_netsim.core.addresses import parse_address
from outrider_netsim.core.engine_names import EngineName
from outrider_netsim.core.errors import EngineError
from outrider_netsim.link import Link
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES
from outrider_netsim.profiles.profile import Profile
from outrider_netsim.transfers.plan import Samples, TransferPlan, TransferTask

Json = dict[str, Any]  # what json.loads gives

BACKLOG = 128
LINE_BYTES = 1 << 26  # of the samples, which arrive as one line


async def take_really(
    task: TransferTask, profile: Profile, plan: TransferPlan, seed: int, engine: EngineName
) -> Samples:
    """Run one task over a new link of `profile`, which is used as it is.

    Raises EngineError when this machine cannot run the engine, or measuring fails.
    """
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        async with Link(profile, f"127.0.0.1:{listener.getsockname()[1]}", engine, seed) as link:
            address = tuple(parse_address("link", link.address))
            if link.namespaces is not None:
                listener = sockets.enter_context(await link.namespaces.listener("B", LINK_ADDRESSES["B"]))
                address = listener.getsockname()
            clients = [sockets.enter_context(await _client(link)) for _ in range(plan.connections(task))]
            job = {"task": asdict(task), "plan": asdict(plan), "address": address}
            return await _worked(link, job, listener, clients)


async def _client(link: Link) -> socket.socket:
    return socket.socket() if link.namespaces is None else await link.namespaces.socket("A")


async def _worked(link: Link, job: Json, listener: socket.socket, clients: Sequence[socket.socket]) -> Samples:
    """Have a worker do `job`, and change the link when it asks."""
    descriptors = [client.fileno() for client in clients]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider_netsim.transfers.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=[listener.fileno(), *descriptors],
        limit=LINE_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _write(process.stdin, job | {"listener": listener.fileno(), "clients": descriptors})
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
