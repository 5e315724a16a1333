"""Goodput of one TCP connection through an engine with loss, kernel and user space on one kernel's TCP for comparison.

Arguments: `engines`, `seconds` of sending each, and of the link, alike both ways: `loss`, `delay_ms`, `rate_bps`.
The sender stands in A and the receiver in B, without the splices: the connection's only leg is the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

from outrider_netsim.core.addresses import Address
from outrider_netsim.engines.engine_link import LinkPlan
from outrider_netsim.link import EngineLink
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_netsim.profiles.profile import Direction, Profile

CHUNK = bytes(1 << 15)
BUFFER_BYTES = 1 << 22  # on both sides, more than moves in a step, so that the program never holds TCP up
STEP_S = 0.1  # the program acts only so often: the guest emulates a change of process slowly
SLOW_START_S = 2.0  # left out: how it ends depends on where the first loss falls
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h
PORT = 5001
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def main(arguments: dict) -> dict:
    direction = Direction(delay_ms=arguments["delay_ms"], rate_bps=arguments["rate_bps"], loss=arguments["loss"])
    profile = Profile.symmetric("tcp-loss", direction)
    return {
        "congestion_control": CONGESTION_CONTROL.read_text().strip(),
        "goodput_bps": {
            engine: asyncio.run(goodput_bps(engine_link(engine, profile), arguments["seconds"]))
            for engine in arguments["engines"]
        },
    }


def engine_link(engine: str, profile: Profile) -> EngineLink:
    """The engine's class, with an upstream that nobody asks for."""
    upstream = Address("127.0.0.1", 1)
    if engine == "kernel":
        from outrider_netsim.engines.kernel import KernelLink

        return KernelLink(LinkPlan(profile, upstream))
    from outrider_netsim.engines.tun import TunLink

    return TunLink(LinkPlan(profile, upstream))


async def goodput_bps(link: EngineLink, seconds: float) -> float:
    """Payload bits a second that the receiver reads, once slow start is over."""
    await link.start()
    try:
        sender, receiver = await connection(link.namespaces)
        with sender, receiver:
            await carried_bytes(sender, receiver, SLOW_START_S)
            return 8 * await carried_bytes(sender, receiver, seconds) / seconds
    finally:
        await link.aclose()


async def connection(namespaces: Namespaces) -> tuple[socket.socket, socket.socket]:
    """Sockets of A and B, connected over the link."""
    loop = asyncio.get_running_loop()
    sender = await namespaces.socket("A")
    sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
    with await namespaces.listener("B", LINK_ADDRESSES["B"], PORT) as listener:
        listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        accepting = asyncio.create_task(loop.sock_accept(listener))
        await loop.sock_connect(sender, (LINK_ADDRESSES["B"], PORT))
        receiver, _ = await accepting
    return sender, receiver


async def carried_bytes(sender: socket.socket, receiver: socket.socket, seconds: float) -> int:
    """What arrives in the next `seconds` while the sender always has something to send."""
    total, until = 0, time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        fill(sender)
        await asyncio.sleep(min(STEP_S, left_s))
        total += drained_bytes(receiver)
    return total


def fill(sender: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(CHUNK)


def drained_bytes(receiver: socket.socket) -> int:
    total, buffer = 0, bytearray(1 << 18)
    with contextlib.suppress(BlockingIOError):
        while True:
            total += receiver.recv_into(buffer)
    return total
