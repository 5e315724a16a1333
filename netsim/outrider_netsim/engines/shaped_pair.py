"""The kernel engine's link itself: a veth pair between the namespaces, shaped by qdiscs at both ends.

    A: outrider0 --[ netem in tbf: up ]-->  veth  <--[ netem in tbf: down ]-- outrider0 :B

This process configures it through two netlink sockets that the namespace holder opened, one in each namespace; a change
takes well under a millisecond. Nothing but users' packets crosses the pair (no ARP, no IPv6), and they cross one by one
(no segmentation offload), as netem counts them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines import qdisc_messages as messages
from outrider_netsim.engines.netem import BufferKind, Netem, QdiscConfig
from outrider_netsim.engines.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkClient, NetlinkError
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES, LINK_INTERFACE, MTU_BYTES, Side

RTM_NEWLINK, RTM_NEWADDR, RTM_NEWNEIGH = 16, 20, 28  # linux/rtnetlink.h
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
IFF_UP = 1
IN6_ADDR_GEN_MODE_NONE = 1
NUD_PERMANENT = 0x80
PREFIX_LENGTH = 30
IPV6 = Path("/proc/net/if_inet6")
MACS: dict[Side, str] = {"A": "02:00:0a:4d:00:01", "B": "02:00:0a:4d:00:02"}  # locally administered
SIDES: tuple[Side, Side] = ("A", "B")
OTHER_ENGINE = "use --engine tun"
QDISCS = ("netem", "tbf", "plug", "codel", "fq_codel")  # each in a module of its name


@dataclass(frozen=True, slots=True)
class QdiscCounters:
    """Counters of one end's qdiscs.

    `dropped` is the first netem's: its losses, packets that its full queue refused, and those that the qdiscs in it
    dropped. `dropped_by_buffer` counts the buffer's part of them, from 0 for each new buffer.
    """

    packets_out: int = 0
    bytes_out: int = 0
    waiting_packets: int = 0
    waiting_bytes: int = 0
    dropped: int = 0
    dropped_by_buffer: int = 0
    seed: int | None = None  # None: this netem has no seed


class ShapedPair:
    """The running link. `up` shapes packets that leave A, `down` those that leave B."""

    def __init__(self, clients: dict[Side, NetlinkClient], up: QdiscConfig, down: QdiscConfig) -> None:
        """Create the link. Raises EngineError where the kernel cannot; what it made goes with the namespaces."""
        self._clients = clients
        self._held: set[Side] = set()
        self._in_netem: dict[Side, tuple[bool, BufferKind | None]] = dict.fromkeys(SIDES, (False, None))
        with _explained_refusals("a veth pair"):
            self._indices = _make_pair(clients)
        for side, shaping in zip(SIDES, (up, down), strict=True):
            self.shape(side, shaping)
        with _explained_refusals("the addresses of the veth pair"):
            for side in SIDES:
                _bring_up(side, self._indices[side], clients[side])

    def shape(self, side: Side, shaping: QdiscConfig) -> None:
        """Create or change the qdiscs of `side`; packets under way keep their times.

        Raises EngineError. The old settings may then stay in part, which needs a machine out of memory.
        """
        client, index = self._clients[side], self._indices[side]
        # A qdisc with the same handle is changed in place, keeping its packets; any other is replaced. Without REPLACE
        # a second try after a refusal would find its first request done (EEXIST).
        flags = NLM_F_CREATE | NLM_F_REPLACE
        with _explained_refusals("tbf"):
            client.request(messages.tbf_message(index, shaping.tbf), RTM_NEWQDISC, flags)
        with _explained_refusals("netem"):
            client.request(messages.netem_message(index, shaping.netem), RTM_NEWQDISC, flags)
        in_netem = shaping.losses is not None, shaping.buffer.kind if shaping.buffer else None
        if self._in_netem[side] not in (in_netem, (False, None)):
            with _explained_refusals("to change the qdiscs in netem"):
                client.request(messages.no_child_message(index), RTM_DELQDISC)
        self._in_netem[side] = in_netem
        if shaping.losses is not None:
            with _explained_refusals("a second netem"):
                losses = messages.netem_message(index, shaping.losses, messages.LOSSES_HANDLE, messages.LOSSES_PARENT)
                client.request(losses, RTM_NEWQDISC, flags)
        if shaping.buffer is not None:
            message = messages.buffer_message(index, shaping.buffer, behind_losses=shaping.losses is not None)
            with _explained_refusals(shaping.buffer.kind):
                client.request(message, RTM_NEWQDISC, flags)
            if shaping.buffer.kind == "plug":
                self.hold(side, side in self._held)

    def hold(self, side: Side, is_held: bool) -> None:
        """Let the packets of `side` wait, or go on; it needs a plug. Raises EngineError."""
        (self._held.add if is_held else self._held.discard)(side)
        with _explained_refusals("plug"):
            self._clients[side].request(messages.plug_message(self._indices[side], is_held=is_held), RTM_NEWQDISC)

    def change_delay(self, side: Side, netem: Netem) -> None:
        """Change the delay of the first netem of `side`, which is constant. Raises EngineError."""
        with _explained_refusals("netem"):
            self._clients[side].request(messages.netem_delay_message(self._indices[side], netem), RTM_NEWQDISC)

    def count(self, side: Side) -> QdiscCounters:
        """Return the counters of the qdiscs of `side`."""
        index = self._indices[side]
        found: dict[int, Any] = {}  # by handle; Any: pyroute2's messages
        for data in self._clients[side].dump(messages.QdiscMessage(), RTM_GETQDISC):
            message = messages.QdiscMessage(data)
            message.decode()
            if message["index"] == index:
                found[message["handle"]] = message
        buffer = next((found[handle] for handle in messages.BUFFER_HANDLES.values() if handle in found), None)
        return _counted(found[messages.TBF_HANDLE], found[messages.NETEM_HANDLE], buffer)


def _make_pair(sides: dict[Side, NetlinkClient]) -> dict[Side, int]:
    """Create both interfaces, down and without addresses; return their indices.

    Raises NetlinkError (ENOTSUP: no veth in the kernel).
    """
    namespace = sides["B"].namespace()
    try:
        peer = {"attrs": [*_identity("B"), ("IFLA_NET_NS_FD", namespace)]}
        message = ifinfmsg()
        message["attrs"] = [
            *_identity("A"),
            (
                "IFLA_LINKINFO",
                {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", peer)]})]},
            ),
        ]
        sides["A"].request(message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
    finally:
        os.close(namespace)
    return {side: client.interface_index(LINK_INTERFACE) for side, client in sides.items()}


def _bring_up(side: Side, index: int, client: NetlinkClient) -> None:
    """Set an end's address and its neighbor's hardware address, and bring it up."""
    _keep_quiet(index, client)
    other: Side = "B" if side == "A" else "A"
    link = ifinfmsg()
    link["index"], link["flags"], link["change"] = index, IFF_UP, IFF_UP
    # Without it TCP hands over bursts of up to 64 KB that netem delays, drops and counts as one packet.
    link["attrs"] = [("IFLA_GSO_MAX_SEGS", 1)]
    client.request(link, RTM_NEWLINK)
    address = ifaddrmsg()
    address["family"], address["prefixlen"], address["index"] = socket.AF_INET, PREFIX_LENGTH, index
    address["attrs"] = [("IFA_LOCAL", LINK_ADDRESSES[side]), ("IFA_ADDRESS", LINK_ADDRESSES[side])]
    client.request(address, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL)
    neighbor = ndmsg()
    neighbor["family"], neighbor["ifindex"], neighbor["state"] = socket.AF_INET, index, NUD_PERMANENT
    neighbor["attrs"] = [("NDA_DST", LINK_ADDRESSES[other]), ("NDA_LLADDR", MACS[other])]
    client.request(neighbor, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE)


def _identity(side: Side) -> list[tuple[str, object]]:
    return [("IFLA_IFNAME", LINK_INTERFACE), ("IFLA_ADDRESS", MACS[side]), ("IFLA_MTU", MTU_BYTES)]


def _keep_quiet(index: int, client: NetlinkClient) -> None:
    """Prevent automatic IPv6 addresses, whose router and neighbor solicitations would cross the link."""
    # A kernel without IPv6 rejects the attribute.
    if IPV6.exists():
        modes = {"attrs": [("IFLA_INET6_ADDR_GEN_MODE", IN6_ADDR_GEN_MODE_NONE)]}
        link = ifinfmsg()
        link["index"] = index
        link["attrs"] = [("IFLA_AF_SPEC", {"attrs": [("AF_INET6", modes)]})]
        client.request(link, RTM_NEWLINK)


def _counted(tbf: Any, netem: Any, buffer: Any) -> QdiscCounters:  # Any: pyroute2's messages
    # Drops are netem's: tbf counts them again, as netem answers __NET_XMIT_BYPASS, and they cannot be told apart there.
    sent = tbf.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")
    waiting = tbf.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")
    return QdiscCounters(
        packets_out=sent["packets"],
        bytes_out=sent["bytes"],
        waiting_packets=waiting["qlen"],
        waiting_bytes=waiting["backlog"],
        dropped=_drops(netem),
        dropped_by_buffer=_drops(buffer) if buffer is not None else 0,
        seed=netem.get_attr("TCA_OPTIONS").get_attr("TCA_NETEM_PRNG_SEED"),
    )


def _drops(qdisc: Any) -> int:  # Any: pyroute2's message
    drops: int = qdisc.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")["drops"]
    return drops


class _explained_refusals(contextlib.AbstractContextManager["_explained_refusals"]):
    """Turn the kernel's refusals into EngineErrors with a remedy."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, NetlinkError):
            raise EngineError(
                f"the kernel refuses {self._what} ({error.strerror}): {_remedy(self._what, error)}"
            ) from None


def _remedy(what: str, error: NetlinkError) -> str:
    match error.errno:
        case errno.ENOENT | errno.EOPNOTSUPP:
            return _no_module(f"sch_{what}" if what in QDISCS else "veth")
        case errno.EPERM | errno.EACCES:
            return f"run as root, or {OTHER_ENGINE}"
        case _:
            return f"this is Linux {platform.release()}; netem needs 4.15 or newer, else {OTHER_ENGINE}"


def _no_module(name: str) -> str:
    """Return the remedy for a kernel without module `name`."""
    return (
        f"load it (modprobe {name}); where the kernel {platform.release()} came without that module, install it "
        f"(Debian: linux-image-amd64 or linux-image-cloud-amd64, Ubuntu: linux-modules-extra-{platform.release()}) "
        f"or {OTHER_ENGINE}"
    )
