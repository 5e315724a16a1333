"""Lead connections over a link by routes, so that a program in A meets the kernel's TCP over the link and no relay.

    program -> 127.0.0.1:PORT, A's rule == link == B's rule -> listener in B -> splice -> server
                                                      \\-> gate: holds a SYN until the server has accepted

Each connection's first packet goes to a TUN device in B, whose reader asks the server: it hands the packet back to the
kernel, whose listener then answers, or answers itself as the far side did. The rest of an admitted connection does not
pass the gate. Needs policy routing (CONFIG_IP_MULTIPLE_TABLES) and rules by port (Linux 4.17).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from outrider_netsim.core.async_resource import cancel_all
from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, NetlinkClient
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES, LINK_INTERFACE, Side
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_netsim.namespaces.tcp_splice import SpliceLeg

LOOPBACK = "127.0.0.1"
GATE = "gate0"
KEPT_S = 130.0  # without a connection: Linux tries SYN-ACK for a minute, SYN and the end of a closed one for two
BATCH_PACKETS = 64
READ_BYTES = 65_536

RTM_NEWLINK, RTM_NEWROUTE, RTM_NEWRULE, RTM_DELRULE = 16, 24, 32, 33  # linux/rtnetlink.h
RTA_OIF, RTA_GATEWAY, RTA_METRICS, RTAX_CC_ALGO = 4, 5, 8, 16
RTPROT_STATIC, RTN_UNICAST, SCOPE_LINK = 4, 1, 253
FRA_DST, FRA_SRC, FRA_IIFNAME, FRA_PRIORITY = 1, 2, 3, 6
FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE = 22, 23, 24
FR_ACT_TO_TBL = 1  # linux/fib_rules.h
IFLA_AF_SPEC, IFLA_INET_CONF = 26, 1
FORWARDING, ACCEPT_LOCAL, ROUTE_LOCALNET = 1, 23, 26  # linux/ip.h, IPV4_DEVCONF_*
OUR_TABLE, LOCAL_TABLE = 77, 255
# Priorities of rules. The local table's is 0 at first, before which there is no place.
ADMITTED, OWN, LED, LOCAL = 10, 15, 20, 30

SYN, SYN_OR_ACK = 0x02, 0x12
UNREACHABLE = {errno.ENETUNREACH: 0, errno.EHOSTUNREACH: 1}  # codes of ICMP's type 3
PORT_UNREACHABLE = 3  # ECONNREFUSED for Linux's TCP (RFC 1122, 4.2.3.9)
Ports = tuple[int, int]  # the client's and the server's
AskServer = Callable[[int], Awaitable[SpliceLeg]]  # connects to the server behind a port; raises OSError


class Steering:
    """The routes of both sides and the gate between them."""

    def __init__(
        self, rules: dict[Side, NetlinkClient], gate: int | None, closing: contextlib.ExitStack, ask: AskServer
    ) -> None:
        self.stayed: Counter[int] = Counter()  # connections on A's own loopback, by their port
        self._rules = rules
        self._closing = closing
        self._gate = gate
        self._ask = ask
        self._asking: dict[Ports, asyncio.Task[None]] = {}
        self._admitted: dict[Ports, tuple[SpliceLeg | None, asyncio.TimerHandle]] = {}

    @classmethod
    async def start(
        cls, namespaces: Namespaces, rules: dict[Side, NetlinkClient], congestion: str, ask: AskServer
    ) -> Steering:
        """Prepare both sides of a link that is up. Raises EngineError where the kernel has no policy routing."""
        gate: int | None = None
        with contextlib.ExitStack() as undo:
            sniffer = undo.enter_context(await namespaces.sniffer("A", "lo"))
            # Without a TUN device (the kernel engine needs none) the listener in B accepts before the server does.
            with contextlib.suppress(EngineError):
                gate = await namespaces.tun("B", GATE)
                undo.callback(os.close, gate)
            try:
                _prepare(rules, congestion, has_gate=gate is not None)
            except OSError as error:
                raise EngineError(
                    f"the kernel refuses routes by port ({error.strerror}): it needs CONFIG_IP_MULTIPLE_TABLES and "
                    "Linux 4.17; or use --engine proxy"
                ) from None
            steering = cls(rules, gate, undo.pop_all(), ask)
        steering._watch(sniffer.fileno(), steering._count)
        if gate is not None:
            steering._watch(gate, steering._read)
        return steering

    async def aclose(self) -> None:
        """Close the gate and what it holds; safe to call twice."""
        for ports in tuple(self._admitted):
            self._expire(ports)
        await cancel_all(list(self._asking.values()))
        self._gate = None
        self._closing.close()

    def lead(self, port: int, *, is_led: bool = True) -> None:
        """Lead connections to 127.0.0.1:`port` in A over the link, or no more."""
        if self._gate is not None:
            self._change("B", _rule(LED, OUR_TABLE, LINK_INTERFACE, (0, port)), is_new=is_led)
        self._change("A", _rule(LED, OUR_TABLE, None, (0, port)), is_new=is_led)

    @property
    def has_admitted(self) -> bool:
        """True while a client was admitted whose connection is not accepted yet."""
        return any(leg is not None for leg, _ in self._admitted.values())

    async def leg(self, ports: Ports) -> SpliceLeg:
        """Return the server's connection for an accepted client: that of its admission, if the gate has it."""
        leg, timer = self._admitted.get(ports, (None, None))
        if timer is not None:
            timer.cancel()
            self._admitted[ports] = None, timer
        return leg or await self._ask(ports[1])

    def forget(self, ports: Ports) -> None:
        """Handle the end of a connection, of which the kernel may still have much to send again."""
        leg, timer = self._admitted.get(ports, (None, None))
        if timer is not None:
            timer.cancel()
            self._admitted[ports] = None, self._expiry(ports)
        if leg is not None:
            leg.reset()

    def _expiry(self, ports: Ports) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(KEPT_S, self._expire, ports)

    def _expire(self, ports: Ports) -> None:
        leg, timer = self._admitted.pop(ports)
        timer.cancel()
        if leg is not None:
            leg.reset()
        # Not before the kernel's socket is gone: it finds that early, and does not hand on what belongs to one.
        self._change("B", _rule(ADMITTED, LOCAL_TABLE, LINK_INTERFACE, ports), is_new=False)

    def _change(self, side: Side, rule: bytes, *, is_new: bool) -> None:
        flags = NLM_F_CREATE | NLM_F_EXCL if is_new else 0
        self._rules[side].request(rule, RTM_NEWRULE if is_new else RTM_DELRULE, flags)

    def _watch(self, descriptor: int, read: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, read, descriptor)
        self._closing.callback(loop.remove_reader, descriptor)

    def _read(self, gate: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH_PACKETS):
                packet = os.read(gate, READ_BYTES)
                # IPv4 only: the kernel announces itself by IPv6.
                if packet[0] >> 4 != 4:
                    continue
                header = 4 * (packet[0] & 15)
                if packet[header + 13] & SYN_OR_ACK == SYN:
                    self._hold(packet, _ports(packet))
                else:
                    os.write(gate, packet)

    def _count(self, sniffer: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := os.read(sniffer, READ_BYTES):
                self.stayed[_ports(packet)[1]] += 1

    def _hold(self, packet: bytes, ports: Ports) -> None:
        # Otherwise the client's kernel sends it again, while the server is being asked.
        if ports not in self._asking and ports not in self._admitted:
            task = asyncio.get_running_loop().create_task(self._admit(packet, ports))
            self._asking[ports] = task
            task.add_done_callback(lambda _: self._asking.pop(ports, None))

    async def _admit(self, packet: bytes, ports: Ports) -> None:
        try:
            leg = await self._ask(ports[1])
        except TimeoutError:
            # The client's own kernel will have given up, too.
            return
        except OSError as error:
            packet = refusal(packet, error)
        else:
            self._admitted[ports] = leg, self._expiry(ports)
            self._change("B", _rule(ADMITTED, LOCAL_TABLE, LINK_INTERFACE, ports), is_new=True)
        if self._gate is not None:
            os.write(self._gate, packet)


def _ports(packet: bytes) -> Ports:
    return struct.unpack_from("!HH", packet, 4 * (packet[0] & 15))


def refusal(syn: bytes, error: OSError) -> bytes:
    """Return the ICMP packet that answers a SYN as the far side did: unreachable, or refused for anything else."""
    code = UNREACHABLE.get(error.errno or 0, PORT_UNREACHABLE)
    if isinstance(error, socket.gaierror):
        code = UNREACHABLE[errno.EHOSTUNREACH]
    body = _summed(struct.pack("!BBHI", 3, code, 0, 0) + syn[: 4 * (syn[0] & 15) + 8], 2)
    kind = (0x45, 0, 20 + len(body), 0, 0, 64, socket.IPPROTO_ICMP, 0)
    return _summed(struct.pack("!BBHHHBBH4s4s", *kind, syn[16:20], syn[12:16]), 10) + body


def _summed(part: bytes, at: int) -> bytes:
    """Return `part` with its checksum (RFC 1071) at `at`."""
    total = sum(struct.unpack(f"!{len(part) // 2}H", part))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return part[:at] + struct.pack("!H", total ^ 0xFFFF) + part[at + 2 :]


def _prepare(rules: dict[Side, NetlinkClient], congestion: str, *, has_gate: bool) -> None:
    for side, client in rules.items():
        client.request(_rule(LOCAL, LOCAL_TABLE), RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL)
        client.request(_rule(0, LOCAL_TABLE), RTM_DELRULE)
        # 127.0.0.1 on the link: the far side's, although each side has one of its own.
        client.request(_interface(client, LINK_INTERFACE, (ROUTE_LOCALNET, ACCEPT_LOCAL, FORWARDING)), RTM_NEWLINK)
        if side == "A":
            # A server of A's own answers from 127.0.0.1, perhaps to a port that we lead; who connects has no address.
            client.request(_rule(OWN, LOCAL_TABLE, source=LOOPBACK), RTM_NEWRULE, NLM_F_CREATE)
            # The route names the congestion control, which a namespace does not take where the host keeps it for root.
            over_link = _attribute(RTA_GATEWAY, socket.inet_aton(LINK_ADDRESSES["B"]))
            over_link += _attribute(RTA_METRICS, _attribute(RTAX_CC_ALGO, congestion.encode() + b"\0"))
            client.request(_default_route(client, LINK_INTERFACE, over_link), RTM_NEWROUTE, NLM_F_CREATE)
        elif has_gate:
            client.request(_interface(client, GATE, (ROUTE_LOCALNET, ACCEPT_LOCAL, FORWARDING)), RTM_NEWLINK)
            client.request(_default_route(client, GATE), RTM_NEWROUTE, NLM_F_CREATE)


def _rule(
    priority: int, table: int, interface: str | None = None, ports: Ports | None = None, source: str | None = None
) -> bytes:
    """Describe a rule: for all traffic, or for TCP from (0: any) and to these ports of 127.0.0.1."""
    attributes = _attribute(FRA_PRIORITY, struct.pack("I", priority))
    if ports is not None:
        attributes += _attribute(FRA_DST, socket.inet_aton(LOOPBACK)) + _attribute(FRA_IP_PROTO, b"\x06")
        for kind, port in zip((FRA_SPORT_RANGE, FRA_DPORT_RANGE), ports, strict=True):
            attributes += _attribute(kind, struct.pack("HH", port, port)) if port else b""
    if interface is not None:
        attributes += _attribute(FRA_IIFNAME, interface.encode() + b"\0")
    if source is not None:
        attributes += _attribute(FRA_SRC, socket.inet_aton(source))
    prefixes = 32 * (ports is not None), 32 * (source is not None)
    return struct.pack("BBBBBBBBI", socket.AF_INET, *prefixes, 0, table, 0, 0, FR_ACT_TO_TBL, 0) + attributes


def _default_route(client: NetlinkClient, interface: str, more: bytes = b"") -> bytes:
    attributes = _attribute(RTA_OIF, struct.pack("I", client.interface_index(interface))) + more
    kind = (socket.AF_INET, 0, 0, 0, OUR_TABLE, RTPROT_STATIC, 0 if more else SCOPE_LINK, RTN_UNICAST, 0)
    return struct.pack("BBBBBBBBI", *kind) + attributes


def _interface(client: NetlinkClient, name: str, settings: Collection[int]) -> bytes:
    """Switch on settings of /proc/sys/net/ipv4/conf, by netlink because that may be read-only."""
    values = b"".join(_attribute(setting, struct.pack("I", 1)) for setting in settings)
    nested = _attribute(IFLA_AF_SPEC, _attribute(socket.AF_INET, _attribute(IFLA_INET_CONF, values)))
    return struct.pack("BxHiII", socket.AF_UNSPEC, 0, client.interface_index(name), 0, 0) + nested


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
