"""The kernel engine's link itself: a veth pair between the namespaces, shaped by qdiscs at both ends.

    A: outrider0 --[ netem in tbf: up ]-->  veth  <--[ netem in tbf: down ]-- outrider0 :B

This process configures it through two netlink sockets that the namespace holder opened, one in each namespace; a change
takes well under a millisecond.
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
from outrider_netsim.engines.netem import BufferKind, Netem, QdiscConfig
from outrider_netsim.engines.qdisc_messages import (
    BUFFER_HANDLES,
    NETEM_HANDLE,
    TBF_HANDLE,
    QdiscMessage,
    buffer_message,
    losses_message,
    netem_delay_message,
    netem_message,
    no_child_message,
    plug_message,
    tbf_message,
)
from outrider_netsim.engines.rtnetlink import NLM_F_CREATE, NLM_F_REPLACE, NetlinkClient, NetlinkError
from outrider_netsim.namespaces.interfaces import Side
from outrider_netsim.namespaces.namespaces import Namespaces

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38  # linux/rtnetlink.h
SIDES: tuple[Side, Side] = ("A", "B")
OTHER_ENGINE = "use --engine tun"
MODULES = {
    "netem": "sch_netem",
    "tbf": "sch_tbf",
    "plug": "sch_plug",
    "codel": "sch_codel",
    "fq_codel": "sch_fq_codel",
}


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

    def __init__(self, clients: dict[Side, NetlinkClient], indices: dict[Side, int]) -> None:
        self._clients = clients
        self._indices = indices
        self._held: set[Side] = set()
        self._in_netem: dict[Side, tuple[bool, BufferKind | None]] = dict.fromkeys(SIDES, (False, None))

    @classmethod
    async def make(cls, namespaces: Namespaces, up: QdiscConfig, down: QdiscConfig) -> ShapedPair:
        """Create the link. Raises EngineError where the kernel cannot; what it made goes with the namespaces."""
        with contextlib.ExitStack() as undo:
            clients: dict[Side, NetlinkClient] = {}
            for side in SIDES:
                descriptor = await namespaces.call(side, "outrider_netsim.engines.rtnetlink:open_netlink")
                clients[side] = NetlinkClient(Socket(fileno=descriptor))
                undo.callback(clients[side].close)
            with _explained_refusals("a veth pair"):
                indices = veth.make_pair(clients)
            pair = cls(clients, indices)
            for side, shaping in zip(SIDES, (up, down), strict=True):
                pair.shape(side, shaping)
            with _explained_refusals("the addresses of the veth pair"):
                for side in SIDES:
                    veth.bring_up(side, indices[side], clients[side])
            undo.pop_all()
        return pair

    def shape(self, side: Side, shaping: QdiscConfig) -> None:
        """Create or change the qdiscs of `side`; packets under way keep their times.

        Raises EngineError. The old settings may then stay in part, which needs a machine out of memory.
        """
        client, index = self._clients[side], self._indices[side]
        # A qdisc with the same handle is changed in place, keeping its packets; any other is replaced. Without REPLACE
        # a second try after a refusal would find its first request done (EEXIST).
        flags = NLM_F_CREATE | NLM_F_REPLACE
        with _explained_refusals("tbf"):
            client.request(tbf_message(index, shaping.tbf), RTM_NEWQDISC, flags)
        with _explained_refusals("netem"):
            client.request(netem_message(index, shaping.netem), RTM_NEWQDISC, flags)
        in_netem = shaping.losses is not None, shaping.buffer.kind if shaping.buffer else None
        if self._in_netem[side] not in (in_netem, (False, None)):
            with _explained_refusals("to change the qdiscs in netem"):
                client.request(no_child_message(index), RTM_DELQDISC)
        self._in_netem[side] = in_netem
        if shaping.losses is not None:
            with _explained_refusals("a second netem"):
                client.request(losses_message(index, shaping.losses), RTM_NEWQDISC, flags)
        if shaping.buffer is not None:
            message = buffer_message(index, shaping.buffer, behind_losses=shaping.losses is not None)
            with _explained_refusals(shaping.buffer.kind):
                client.request(message, RTM_NEWQDISC, flags)
            if shaping.buffer.kind == "plug":
                self.hold(side, side in self._held)

    def hold(self, side: Side, is_held: bool) -> None:
        """Let the packets of `side` wait, or go on; it needs a plug. Raises EngineError."""
        (self._held.add if is_held else self._held.discard)(side)
        with _explained_refusals("plug"):
            self._clients[side].request(plug_message(self._indices[side], is_held=is_held), RTM_NEWQDISC)

    def change_delay(self, side: Side, netem: Netem) -> None:
        """Change the delay of the first netem of `side`, which is constant. Raises EngineError."""
        with _explained_refusals("netem"):
            self._clients[side].request(netem_delay_message(self._indices[side], netem), RTM_NEWQDISC)

    def count(self, side: Side) -> QdiscCounters:
        """Return the counters of the qdiscs of `side`."""
        index = self._indices[side]
        found: dict[int, Any] = {}  # by handle; Any: pyroute2's messages
        for data in self._clients[side].dump(QdiscMessage(), RTM_GETQDISC):
            message = QdiscMessage(data)
            message.decode()
            if message["index"] == index:
                found[message["handle"]] = message
        buffer = next((found[handle] for handle in BUFFER_HANDLES.values() if handle in found), None)
        return _counted(found[TBF_HANDLE], found[NETEM_HANDLE], buffer)

    def close(self) -> None:
        """Close the sockets; with the last one the kernel removes the namespaces. Safe to call twice."""
        for client in self._clients.values():
            client.close()


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
            return _no_module(MODULES.get(what, "veth"))
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
