"""A pair of virtual Ethernet interfaces between the link's two namespaces.

Nothing but users' packets crosses it (no ARP, no IPv6), and they cross one by one (no segmentation offload), as netem
counts them.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from outrider_netsim.engines.rtnetlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkClient
from outrider_netsim.namespaces.interfaces import LINK_ADDRESSES, LINK_INTERFACE, MTU_BYTES, Side

RTM_NEWLINK, RTM_NEWADDR, RTM_NEWNEIGH = 16, 20, 28  # linux/rtnetlink.h
IFF_UP = 1
IN6_ADDR_GEN_MODE_NONE = 1
NUD_PERMANENT = 0x80
PREFIX_LENGTH = 30
IPV6 = Path("/proc/net/if_inet6")
MACS: dict[Side, str] = {"A": "02:00:0a:4d:00:01", "B": "02:00:0a:4d:00:02"}  # locally administered


def make_pair(sides: dict[Side, NetlinkClient]) -> dict[Side, int]:
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


def bring_up(side: Side, index: int, client: NetlinkClient) -> None:
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
