"""The kernel engine's link proper: a veth pair between the namespaces, and the qdiscs at both ends that shape it.

    A: outrider0 --[ netem in tbf: up ]-->  veth  <--[ netem in tbf: down ]-- outrider0 :B

Configured from this process through two netlink sockets that the holder opened, one in each namespace; a change takes
well under a millisecond. What could not be finished is undone.
"""

from __future__ import annotations

import contextlib
import errno
import platform
from dataclasses import dataclass
from socket import socket as Socket
from typing import Any

from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines import veth
from outrider_netsim.engines.kernel_support import OTHER_ENGINE, no_module
from outrider_netsim.engines.netem import QdiscConfig
from outrider_netsim.engines.qdisc_messages import QdiscMessage, netem_message, root_message, tbf_message
from outrider_netsim.engines.rtnetlink import NLM_F_CREATE, NLM_F_REPLACE, NetlinkClient, NetlinkError
from outrider_netsim.namespaces.interfaces import Side
from outrider_netsim.namespaces.namespaces import Namespaces

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38  # linux/rtnetlink.h
SIDES: tuple[Side, Side] = ("A", "B")


@dataclass(frozen=True, slots=True)
class QdiscCounters:
    """What one end's qdiscs counted so far. netem's `dropped` are its losses and what a full queue turned away."""

    packets_out: int = 0
    bytes_out: int = 0
    waiting_packets: int = 0
    waiting_bytes: int = 0
    dropped: int = 0
    seed: int | None = None  # None: this netem takes none


class ShapedPair:
    """Both ends, up. `up` is what leaves A, `down` what leaves B."""

    def __init__(self, clients: dict[Side, NetlinkClient], ends: dict[Side, veth.VethEnd]) -> None:
        self._clients = clients
        self._ends = ends

    @classmethod
    async def make(cls, namespaces: Namespaces, up: QdiscConfig, down: QdiscConfig) -> ShapedPair:
        """Raises EngineError where this kernel cannot; the namespaces are as before then."""
        with contextlib.ExitStack() as undo:
            clients: dict[Side, NetlinkClient] = {}
            for side in SIDES:
                descriptor = await namespaces.call(side, "outrider_netsim.engines.rtnetlink:open_netlink_descriptor")
                clients[side] = NetlinkClient(Socket(fileno=descriptor))
                undo.callback(clients[side].close)
            with _understood("a veth pair"):
                ends = veth.make_pair(clients)
            pair = cls(clients, ends)
            undo.callback(pair.remove)
            for side, shaping in zip(SIDES, (up, down), strict=True):
                pair.shape(side, shaping)
            with _understood("the addresses of the veth pair"):
                for side in SIDES:
                    veth.bring_up(ends[side], clients[side])
            undo.pop_all()
        return pair

    def shape(self, side: Side, shaping: QdiscConfig) -> None:
        """Make or change what shapes the packets that leave `side`; those under way keep the times they have.

        Raises EngineError; then what held before may hold on in part, which only a machine out of memory shows.
        """
        client, index = self._clients[side], self._ends[side].index
        flags = NLM_F_CREATE | NLM_F_REPLACE  # a qdisc with this handle is changed in place, any other replaced
        with _understood("tbf"):
            client.request(tbf_message(index, shaping.tbf), RTM_NEWQDISC, flags)
        with _understood("netem"):
            client.request(netem_message(index, shaping.netem), RTM_NEWQDISC, flags)

    def count(self, side: Side) -> QdiscCounters:
        """What the qdiscs of `side` counted."""
        index = self._ends[side].index
        found: dict[str, Any] = {}  # Any: pyroute2's messages
        for data in self._clients[side].dump(QdiscMessage(), RTM_GETQDISC):
            message = QdiscMessage(data)
            message.decode()
            if message["index"] == index:
                found[message.get_attr("TCA_KIND")] = message
        return _counted(found["tbf"], found["netem"])

    def remove(self) -> None:
        """Take the qdiscs and the pair away, as far as they are there."""
        for side in SIDES:
            with contextlib.suppress(NetlinkError):
                self._clients[side].request(root_message(self._ends[side].index), RTM_DELQDISC)
        with contextlib.suppress(NetlinkError):
            veth.remove_pair(self._ends["A"], self._clients["A"])

    def close(self) -> None:
        """Let the sockets go; with the last of them the kernel takes the namespaces away. Safe to call twice."""
        for client in self._clients.values():
            client.close()


def _counted(tbf: Any, netem: Any) -> QdiscCounters:  # Any: pyroute2's messages
    sent = tbf.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")
    waiting = tbf.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")
    return QdiscCounters(
        packets_out=sent["packets"],
        bytes_out=sent["bytes"],
        waiting_packets=waiting["qlen"],
        waiting_bytes=waiting["backlog"],
        dropped=netem.get_attr("TCA_STATS2").get_attr("TCA_STATS_QUEUE")["drops"],
        seed=netem.get_attr("TCA_OPTIONS").get_attr("TCA_NETEM_PRNG_SEED"),
    )


class _understood(contextlib.AbstractContextManager["_understood"]):
    """Turns the kernel's refusals into EngineErrors that say what to do."""

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
            return no_module({"netem": "sch_netem", "tbf": "sch_tbf"}.get(what, "veth"))
        case errno.EPERM | errno.EACCES:
            return f"run as root, or {OTHER_ENGINE}"
        case _:
            return f"this is Linux {platform.release()}; netem needs 4.15 or newer, else {OTHER_ENGINE}"
