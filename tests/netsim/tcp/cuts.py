"""What a program sees of a cut: the same programs over the kernel's TCP (tun) and over the modeled one (virtual).

`python tests/netsim/tcp/cuts.py 5` runs each case of kernel_cuts.json five times over tun, and records that there.
"""

import asyncio
import json
import platform
import socket
import sys
from itertools import pairwise
from pathlib import Path

from outrider_netsim import VirtualClock, VirtualLink
from outrider_netsim.core.addresses import parse_address
from outrider_netsim.link import Link
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.tcp.endpoint import TcpUser

TICKS = {"echo": 100, "duplex": 100, "tokens": 40}  # messages a second; the other programs are asks and transfers
RECORD = Path(__file__).with_name("kernel_cuts.json")
CASES = json.loads(RECORD.read_text())["rows"]  # new ones are written there, without figures


class SocketEnd:
    """An end of a real connection."""

    def __init__(self, own):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._own = own

    async def send(self, size):
        await asyncio.get_running_loop().sock_sendall(self._own, bytes(size))

    async def receive(self):
        return len(await asyncio.get_running_loop().sock_recv(self._own, 1 << 18))


class ModeledEnd(TcpUser):
    """An end of a modeled one, which takes in what the relay would."""

    def __init__(self):
        self.endpoint, self.is_open = None, asyncio.Event()
        self._arrived, self._room = asyncio.Queue(), asyncio.Event()

    def opened(self):
        self.is_open.set()

    def received(self, size_bytes):
        self._arrived.put_nowait(size_bytes)

    def acknowledged(self):
        self._room.set()

    async def send(self, size):
        for start in range(0, size, 1 << 16):
            while self.endpoint.room_bytes <= 0:
                self._room.clear()
                await self._room.wait()
            self.endpoint.write(min(1 << 16, size - start))

    async def receive(self):
        return await self._arrived.get()


async def tick(end, size, number, rate):
    """Send `number` messages at their times, however late the one before was."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for sent in range(number):
        await end.send(size)
        await asyncio.sleep(max(0.0, began_at + (sent + 1) / rate - loop.time()))


async def echo(end):
    while True:
        await end.send(await end.receive())


async def serve(end, size):
    while True:
        await arrivals(end, 300)
        await end.send(size)


async def ask(end, size, seconds):
    loop, times = asyncio.get_running_loop(), []
    ends_at = loop.time() + seconds
    while loop.time() < ends_at:
        await end.send(300)
        times += await arrivals(end, size)
    return times


async def arrivals(end, size):
    """Receive `size` bytes, and return when each part came."""
    times = []
    while size > 0:
        size -= await end.receive()
        times.append(asyncio.get_running_loop().time())
    return times


def programs(case, client, server, seconds):
    """Return what both sides do meanwhile, and what ends with the times of arrivals."""
    size, rate = case["size"], TICKS.get(case["program"], 0)
    number = int(seconds * rate)
    match case["program"]:
        case "echo":
            return [echo(server), tick(client, size, number, rate)], arrivals(client, number * size)
        case "duplex":
            ticks = [tick(end, size, number, rate) for end in (client, server)]
            return ticks, arrivals(client, number * size)
        case "tokens":
            return [tick(server, size, number, rate)], arrivals(client, number * size)
        case "ask":
            return [serve(server, size)], ask(client, size, seconds)
        case "up":
            return [client.send(size)], arrivals(server, size)
        case "down":
            return [server.send(size)], arrivals(client, size)
        case "both":
            return [server.send(size), client.send(size), arrivals(server, size)], arrivals(client, size)


async def measured(case, link, client, server, phase_s):
    """Return the longest silence from the cut on, and when everything had arrived, in s."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    cut_at = began_at + 2 + phase_s
    loop.call_at(cut_at, link.cut)
    loop.call_at(cut_at + case["cut_s"], link.restore)
    others, receiving = programs(case, client, server, 3.5 + 2.6 * case["cut_s"])
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(other) for other in others]
        times = await receiving
        for task in tasks:
            task.cancel()
    return max(after - before for before, after in pairwise(times) if after > cut_at), times[-1] - began_at


def profile_of(case):
    return Profile.symmetric("cut", Direction(**case["link"]))


def over_virtual(case, run):
    link = VirtualLink(profile_of(case), run + 1, VirtualClock())

    async def main():
        client, server = ModeledEnd(), ModeledEnd()
        client.endpoint, server.endpoint = link.endpoints(client, server)
        client.endpoint.open()
        await server.is_open.wait()
        return await measured(case, link, client, server, run * 0.007)

    return link.clock.run(main())


async def over_tun(case, run):
    """The same over two sockets in the link's namespaces; raises EngineError where there are none."""
    loop = asyncio.get_running_loop()
    async with Link(profile_of(case), engine="tun", seed=run + 1) as link:
        with (
            await link.namespaces.listener("B", "10.77.0.2", congestion="cubic") as listener,
            await link.namespaces.socket("A", congestion="cubic") as client,
        ):
            await loop.sock_connect(client, listener.getsockname())
            with (await loop.sock_accept(listener))[0] as server:
                return await measured(case, link, SocketEnd(client), SocketEnd(server), run * 0.007)


async def over_proxy(case, run):
    """The same through the relay, from and to sockets of this machine."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        listener.setblocking(False)
        client.setblocking(False)
        upstream = f"127.0.0.1:{listener.getsockname()[1]}"
        async with Link(profile_of(case), upstream, "proxy", seed=run + 1) as link:
            await loop.sock_connect(client, parse_address("link", link.address))
            with (await loop.sock_accept(listener))[0] as server:
                return await measured(case, link, SocketEnd(client), SocketEnd(server), run * 0.007)


async def record(runs, at_once=2):
    """Measure every case over tun, and write it to the file."""
    turn = asyncio.Semaphore(at_once)

    async def one(case, run):
        async with turn, asyncio.timeout(120):
            return [round(value, 3) for value in await over_tun(case, run)]

    measured = await asyncio.gather(*(one(case, run) for case in CASES for run in range(runs)))
    rows = [case | {"silence_s, done_s": measured[runs * n : runs * n + runs]} for n, case in enumerate(CASES)]
    made_by = {"command": " ".join(["python", *sys.argv]), "kernel": platform.release().partition("-")[0]}
    lines = ",\n".join(map(json.dumps, rows))
    RECORD.write_text(f'{json.dumps(made_by)[:-1]}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    asyncio.run(record(int(sys.argv[1])))
