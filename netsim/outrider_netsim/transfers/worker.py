"""The process that holds both ends of a real link while it is measured.

    python -m outrider_netsim.transfers.worker        (sockets are inherited descriptors; JSON, one object a line)

    stdin    the job, then {"at": s} for each change of the link: when it was made, on the monotonic clock
    stdout   {"change": "cut" or "restore"} as they are wanted, and at last {"samples": ...} or {"error": ...}

It is a process of its own because the proxy relays in its caller's process: ends there would wait for its interpreter.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

from outrider_netsim.core.errors import EngineError
from outrider_netsim.transfers.measures import take
from outrider_netsim.transfers.plan import Samples, TransferPlan, TransferTask
from outrider_netsim.transfers.socket_ends import SocketEnds

Json = dict[str, Any]  # what json.loads gives


class ParentSwitch:
    """Asks the parent process, which runs the engine, to cut and restore the link."""

    async def cut(self) -> None:
        await asyncio.to_thread(_asked, "cut")

    async def restore(self) -> float:
        return await asyncio.to_thread(_asked, "restore")


def main() -> None:
    """Do the job on stdin."""
    job = json.loads(sys.stdin.readline())
    try:
        _tell({"samples": asyncio.run(_take(job))})
    except EngineError as error:
        _tell({"error": str(error)})


async def _take(job: Json) -> Samples:
    listener = _adopted(job["listener"])
    clients = [_adopted(number) for number in job["clients"]]
    ends = SocketEnds(tuple(job["address"]), listener, clients, ParentSwitch())
    return await take(TransferTask(**job["task"]), ends, TransferPlan.of(job["plan"]))


def _adopted(descriptor: int) -> socket.socket:
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock


def _asked(change: str) -> float:
    _tell({"change": change})
    return float(json.loads(sys.stdin.readline())["at"])


def _tell(message: Json) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
