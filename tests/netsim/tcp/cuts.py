"""What a program sees of a cut: the same programs over the kernel's TCP (tun) and over the modeled one (virtual).

`python tests/netsim/tcp/cuts.py 5 > tests/netsim/tcp/kernel_cuts.json` records five runs of each case over tun.
"""

import asyncio
import json
import platform
import socket
import sys
from itertools import pairwise

from outrider_netsim import VirtualClock, VirtualLink
from outrider_netsim.core.addresses import parse_address
from outrider_netsim.link import Link
from outrider_netsim.profiles.profile import Direction, Profile
from outrider_netsim.tcp.endpoint import TcpUser

TICKS = {"echo": 100, "duplex": 100, "tokens": 40}  # messages a second; the other programs are asks and transfers


def case(program, cut_s, size=8, **link):
    return {"program": program, "cut_s": cut_s, "size": size, "link": link}


TWENTY = {"delay_ms": 20}
FAST = {"delay_ms": 20, "rate_bps": 20e6}
CASES = [
    *(case("echo", cut_s, **TWENTY) for cut_s in (0.2, 0.5, 1, 1.5, 2, 3, 5, 8)),
    *(case("echo", cut_s, delay_ms=5) for cut_s in (0.5, 2)),
    *(case("echo", cut_s, delay_ms=80) for cut_s in (0.3, 1, 4)),
    *(case("echo", cut_s, loss=0.01, **TWENTY) for cut_s in (0.5, 2)),
    *(case("duplex", cut_s, 1000, delay_ms=50, rate_bps=5e6) for cut_s in (0.5, 2)),
    *(case("duplex", cut_s, 4000, delay_ms=20, rate_bps=10e6) for cut_s in (0.5, 3)),
    *(case("tokens", cut_s, 60, delay_ms=30) for cut_s in (0.3, 1, 5)),
    *(case("ask", cut_s, 300, **TWENTY) for cut_s in (0.3, 1, 3)),
    case("ask", 2, 8000, delay_ms=60, rate_bps=10e6),
    case("ask", 1, 300, loss=0.02, **TWENTY),
    *(case("down", cut_s, 7_000_000, **FAST) for cut_s in (0.3, 1, 3)),
    *(case("up", cut_s, 7_000_000, **FAST) for cut_s in (0.3, 2)),
    *(case("down", cut_s, 2_000_000, delay_ms=50, rate_bps=5e6) for cut_s in (0.5, 2)),
    *(case("up", cut_s, 1_500_000, delay_ms=40, rate_bps=4e6) for cut_s in (0.7, 2.2)),
    case("down", 1, 3_500_000, delay_ms=20, rate_bps=10e6, queue_ms=100),
    *(case("both", cut_s, 3_500_000, delay_ms=30, rate_bps=10e6) for cut_s in (0.5, 2)),
]


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
    """Measure every case over tun, and return a JSON object."""
    turn = asyncio.Semaphore(at_once)

    async def one(case, run):
        async with turn, asyncio.timeout(120):
            return [round(value, 3) for value in await over_tun(case, run)]

    measured = await asyncio.gather(*(one(case, run) for case in CASES for run in range(runs)))
    rows = [{**case, "silence_s, done_s": measured[runs * n : runs * n + runs]} for n, case in enumerate(CASES)]
    return {"command": " ".join(["python", *sys.argv]), "kernel": platform.release().partition("-")[0], "rows": rows}


if __name__ == "__main__":
    found = asyncio.run(record(int(sys.argv[1])))
    print(
        "{", *(f"{json.dumps(key)}: {json.dumps(found[key])}," for key in ("command", "kernel")), '"rows": [', sep="\n"
    )
    print(",\n".join(map(json.dumps, found["rows"])), "]}", sep="\n")
