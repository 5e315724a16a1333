"""The two ends of a virtual link. All of a measurement then takes place in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from outrider_netsim.profiles.profile import Profile
from outrider_netsim.transfers.measures import take
from outrider_netsim.transfers.plan import Samples, TransferPlan, TransferTask
from outrider_netsim.virtual.connection import MessageConnection
from outrider_netsim.virtual.link import VirtualLink

CHUNK_BYTES = 4 * 1448  # arrives whole, so its size is what a download is counted in
CHUNKS_AHEAD = 1024  # what the server's program has written and the link not delivered, as in a large socket buffer


@dataclass(frozen=True, slots=True)
class _Request:
    reply_bytes: int
    then_stream: bool = False


class VirtualTransferConnection:
    """The client's end of a connection, and a task that replies at the server's end."""

    def __init__(self, client: MessageConnection, server: MessageConnection) -> None:
        self.received_bytes = 0
        self._client, self._server = client, server
        # asyncio holds only weak references to tasks.
        self._tasks = [asyncio.create_task(self._serve())]

    async def exchange(self, request_bytes: int, reply_bytes: int) -> None:
        self._client.send(_Request(reply_bytes), request_bytes)
        await self._client.receive()

    async def stream(self) -> None:
        self._client.send(_Request(0, then_stream=True), 0)
        self._tasks.append(asyncio.create_task(self._receive_stream()))

    async def _serve(self) -> None:
        while True:
            request = await self._server.receive()
            for _ in range(CHUNKS_AHEAD if request.then_stream else 0):
                self._server.send(None, CHUNK_BYTES)
            if not request.then_stream:
                self._server.send(None, request.reply_bytes)

    async def _receive_stream(self) -> None:
        while True:
            await self._client.receive()
            self.received_bytes += CHUNK_BYTES
            # One more for each that arrived: the sender never runs out.
            self._server.send(None, CHUNK_BYTES)


class VirtualEnds:
    """Both ends of a virtual link, for a program on its clock."""

    def __init__(self, link: VirtualLink) -> None:
        self._link = link

    async def connect(self) -> VirtualTransferConnection:
        client = await self._link.connect()
        return VirtualTransferConnection(client, await self._link.accept())

    async def cut(self) -> None:
        self._link.cut()

    async def restore(self) -> float:
        self._link.restore()
        return self._link.clock.now


def take_virtually(task: TransferTask, profile: Profile, plan: TransferPlan, seed: int) -> Samples:
    """Run one task over a virtual link of `profile`, which is used as it is. Raises EngineError."""
    link = VirtualLink(profile, seed, congestion=plan.congestion)
    return link.clock.run(take(task, VirtualEnds(link), plan))
