"""Netlink messages for netem and tbf with what pyroute2's classes lack: newer attributes, delay tables, burst losses.

The layouts are the kernel's (include/uapi/linux/pkt_sched.h). pyroute2 0.9.7 has `none` for netem's delay distribution
and loss models, no LATENCY64, JITTER64, RATE64 and PRNG_SEED, and sends a `rate` of netem a second time as TCA_RATE,
which the kernel refuses (ERANGE); its tbf has no RATE64 and no burst in bytes. Nothing of pyroute2 is patched.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from pyroute2.netlink import NLA_F_NESTED, nla, nlmsg
from pyroute2.netlink.rtnl.tcmsg import sched_netem, sched_tbf, tcmsg

from outrider_netsim.engines.netem import U32_MAX, BufferKind, BufferQdisc, Netem, Tbf, share_of_u32
from outrider_netsim.impairments.buffer import INTERVAL_S, TARGET_S

TC_H_ROOT = 0xFFFF_FFFF
TBF_HANDLE, NETEM_PARENT, NETEM_HANDLE = 0x1_0000, 0x1_0001, 0x10_0000  # 1:, 1:1 and 10:
LOSSES_PARENT, LOSSES_HANDLE = 0x10_0001, 0x30_0000  # 10:1 and 30:
# One for each kind: the kernel refuses another kind under the handle of a running qdisc.
BUFFER_HANDLES: dict[BufferKind, int] = {"bfifo": 0x20_0000, "plug": 0x21_0000}
BUFFER_HANDLES |= {"codel": 0x22_0000, "fq_codel": 0x23_0000}
TCQ_PLUG_BUFFER, TCQ_PLUG_RELEASE_INDEFINITE, TCQ_PLUG_LIMIT = 0, 2, 3  # struct tc_plug_qopt's actions
CODEL_TARGET_US, CODEL_INTERVAL_US = round(TARGET_S * 1e6), round(INTERVAL_S * 1e6)
LINKLAYER_ETHERNET = 1
NS_PER_TICK = 64  # PSCHED_SHIFT 6
# tcmsg, TCA_KIND, the head of TCA_OPTIONS, tc_netem_qopt, and the attributes LATENCY64 and PRNG_SEED.
NETEM_OPTIONS_AT = 32  # where TCA_OPTIONS begins
TCA_KIND, TCA_OPTIONS, TCA_NETEM_LATENCY64, TCA_NETEM_PRNG_SEED = 1, 2, 10, 14
NETEM_DELAY_CHANGE = struct.Struct("=B3xiIII HH6s2x HH 6I HHq HHQ")

Fields = tuple[tuple[str, str], ...]
NlaMap = tuple[tuple[int, str, str], ...]


# Not a subclass of pyroute2's class, here and below: on first use pyroute2 stores a compiled attribute map in a class,
# which a subclass would inherit in place of its own.
class NetemOptions(nla):  # type: ignore[misc]  # pyroute2 ships no types
    """struct tc_netem_qopt and the attributes behind it that we send; fields that are not given are 0."""

    fields: ClassVar[Fields] = sched_netem.options.fields
    netem_corrupt = sched_netem.options.netem_corrupt
    netem_rate = sched_netem.options.netem_rate
    nla_map: ClassVar[NlaMap] = (
        (2, "TCA_NETEM_DELAY_DIST", "array(int16)"),
        (4, "TCA_NETEM_CORRUPT", "netem_corrupt"),
        (5, "TCA_NETEM_LOSS", "netem_loss"),
        (6, "TCA_NETEM_RATE", "netem_rate"),
        (8, "TCA_NETEM_RATE64", "uint64"),
        (10, "TCA_NETEM_LATENCY64", "int64"),
        (11, "TCA_NETEM_JITTER64", "int64"),
        (12, "TCA_NETEM_SLOT", "netem_slot"),
        (14, "TCA_NETEM_PRNG_SEED", "uint64"),
    )

    class int16(nla):  # type: ignore[misc]  # pyroute2 finds the element of an array by this name
        fields: ClassVar[Fields] = (("value", "h"),)

    class netem_slot(nla):  # type: ignore[misc]  # pyroute2 has no types
        """struct tc_netem_slot."""

        fields: ClassVar[Fields] = (
            *(("min_delay", "q"), ("max_delay", "q"), ("max_packets", "i"), ("max_bytes", "i")),
            *(("dist_delay", "q"), ("dist_jitter", "q")),
        )

    class netem_loss(nla):  # type: ignore[misc]  # pyroute2 has no types
        """A loss model; without this attribute losses are independent."""

        nla_flags: ClassVar[int] = NLA_F_NESTED
        nla_map: ClassVar[NlaMap] = ((2, "NETEM_LOSS_GE", "gemodel"),)

        class gemodel(nla):  # type: ignore[misc]  # pyroute2 has no types
            fields: ClassVar[Fields] = (("p", "I"), ("r", "I"), ("h", "I"), ("k1", "I"))


class TbfOptions(nla):  # type: ignore[misc]  # pyroute2 has no types
    """tbf without rate tables: for a known link layer the kernel computes times itself (since 3.8)."""

    nla_map: ClassVar[NlaMap] = (
        (1, "TCA_TBF_PARMS", "tbf_parms"),
        (4, "TCA_TBF_RATE64", "uint64"),
        (6, "TCA_TBF_BURST", "uint32"),
    )

    class tbf_parms(nla):  # type: ignore[misc]  # pyroute2 has no types
        """struct tc_tbf_qopt; pyroute2's `rate___reserved` is what the kernel now calls the link layer."""

        fields: ClassVar[Fields] = sched_tbf.options.tbf_parms.fields


class FifoOptions(nla):  # type: ignore[misc]  # pyroute2 ships no types
    """struct tc_fifo_qopt; pyroute2's limit has a sign."""

    fields: ClassVar[Fields] = (("limit", "I"),)


class QdiscMessage(nlmsg):  # type: ignore[misc]  # pyroute2 has no types
    """struct tcmsg: an RTM_*QDISC message with our options for netem, tbf and bfifo, pyroute2's for other kinds."""

    prefix = tcmsg.prefix
    fields: ClassVar[Fields] = tcmsg.fields
    nla_map: ClassVar[NlaMap] = (
        (1, "TCA_KIND", "asciiz"),
        (2, "TCA_OPTIONS", "get_options"),
        (7, "TCA_STATS2", "get_stats2"),
    )
    get_plugin = tcmsg.get_plugin
    get_stats2 = staticmethod(tcmsg.get_stats2)

    @staticmethod
    def get_options(message: Any, *args: Any, **kwargs: Any) -> Any:  # as pyroute2 calls it
        ours = {"netem": NetemOptions, "tbf": TbfOptions, "bfifo": FifoOptions}
        return ours.get(message.get_attr("TCA_KIND")) or tcmsg.get_options(message, *args, **kwargs)


def netem_message(index: int, netem: Netem, handle: int = NETEM_HANDLE, parent: int = NETEM_PARENT) -> QdiscMessage:
    """Build netem on interface `index`, as the child of our tbf if nothing else is said."""
    # Every value is sent every time: a change keeps the old value of whatever it omits.
    delay = netem.delay
    fields = {
        # LATENCY64 and JITTER64 override these two where the kernel knows them.
        "delay": min(delay.latency_ns // NS_PER_TICK, U32_MAX),
        "jitter": min(delay.jitter_ns // NS_PER_TICK, U32_MAX),
        "limit": netem.limit,
        "loss": netem.loss,
        "duplicate": netem.duplicate,
    }
    attributes: list[tuple[str, object]] = [
        ("TCA_NETEM_LATENCY64", delay.latency_ns),
        ("TCA_NETEM_JITTER64", delay.jitter_ns),
        ("TCA_NETEM_CORRUPT", {"prob_corrupt": netem.corrupt}),
        # The larger of this and RATE64 counts.
        ("TCA_NETEM_RATE", {"rate": min(netem.rate_bytes, U32_MAX)}),
        # Kernels before 6.6 skip it.
        ("TCA_NETEM_PRNG_SEED", netem.seed),
        # No number of packets or bytes ends a slot: 0 stands for the largest.
        ("TCA_NETEM_SLOT", {"min_delay": netem.slot_ns, "max_delay": netem.slot_ns}),
    ]
    if netem.rate_bytes > U32_MAX:
        attributes.append(("TCA_NETEM_RATE64", netem.rate_bytes))
    if delay.entries:
        attributes.append(("TCA_NETEM_DELAY_DIST", delay.entries))
    # The one thing that a change does not keep: without the attribute losses are independent again.
    if bursts := netem.bursts:
        # struct tc_netem_gemodel: the share that passes in the bad state, and the one lost in the good state, which tc
        # takes the other way round. The kernel draws the loss in the state left by the packet before: its chain runs
        # one packet late, by the same law.
        shares = {"p": bursts.p, "r": bursts.r, "h": 1 - bursts.bad, "k1": bursts.good}
        model = {name: share_of_u32(share) for name, share in shares.items()}
        attributes.append(("TCA_NETEM_LOSS", {"attrs": [("NETEM_LOSS_GE", model)]}))
    return _message("netem", index, handle, parent, fields | {"attrs": attributes})


def netem_delay_message(index: int, netem: Netem) -> bytes:
    """Encode a change of the running netem's constant delay, a twentieth of the work of `netem_message`.

    It leaves the rest as it is: slots, whose clock a change sets back, rate, corruption. Coherent delays change
    hundreds of times a second.
    """
    latency_ns = netem.delay.latency_ns
    options = NETEM_DELAY_CHANGE.size - NETEM_OPTIONS_AT
    return NETEM_DELAY_CHANGE.pack(
        *(0, index, NETEM_HANDLE, NETEM_PARENT, 0),
        *(10, TCA_KIND, b"netem", options, TCA_OPTIONS),
        *(min(latency_ns // NS_PER_TICK, U32_MAX), netem.limit, netem.loss, 0, netem.duplicate, 0),
        *(12, TCA_NETEM_LATENCY64, latency_ns),
        # Without a seed netem takes one of its own.
        *(12, TCA_NETEM_PRNG_SEED, netem.seed),
    )


def tbf_message(index: int, tbf: Tbf) -> QdiscMessage:
    """Build tbf as the root of interface `index`."""
    parameters = {
        "rate___reserved": LINKLAYER_ETHERNET,
        "rate": min(tbf.rate_bytes, U32_MAX),
        "limit": tbf.limit_bytes,
    }
    attributes: list[tuple[str, object]] = [("TCA_TBF_PARMS", parameters), ("TCA_TBF_BURST", tbf.burst_bytes)]
    if tbf.rate_bytes > U32_MAX:
        attributes.append(("TCA_TBF_RATE64", tbf.rate_bytes))
    return _message("tbf", index, TBF_HANDLE, TC_H_ROOT, {"attrs": attributes})


def buffer_message(index: int, buffer: BufferQdisc, *, behind_losses: bool) -> QdiscMessage:
    """Build the qdisc in the last netem on interface `index`."""
    parent = (LOSSES_HANDLE if behind_losses else NETEM_HANDLE) + 1
    options: dict[str, object] = {"limit": buffer.limit}
    match buffer.kind:
        case "plug":
            options["action"] = TCQ_PLUG_LIMIT
        case "codel" | "fq_codel":
            values = {"LIMIT": buffer.limit, "TARGET": CODEL_TARGET_US, "INTERVAL": CODEL_INTERVAL_US, "ECN": 0}
            options = {"attrs": [(f"TCA_{buffer.kind.upper()}_{name}", value) for name, value in values.items()]}
    return _message(buffer.kind, index, BUFFER_HANDLES[buffer.kind], parent, options)


def plug_message(index: int, *, is_held: bool) -> QdiscMessage:
    """Build a message that stops or starts the plug on interface `index`, which is stopped when new."""
    action = TCQ_PLUG_BUFFER if is_held else TCQ_PLUG_RELEASE_INDEFINITE
    return _message("plug", index, BUFFER_HANDLES["plug"], 0, {"action": action})


def no_child_message(index: int) -> QdiscMessage:
    """Build a message that deletes what is in the first netem, with its packets."""
    return _addressed(index, 0, LOSSES_PARENT)


def _message(kind: str, index: int, handle: int, parent: int, options: dict[str, object]) -> QdiscMessage:
    message = _addressed(index, handle, parent)
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    return message


def _addressed(index: int, handle: int, parent: int) -> QdiscMessage:
    message = QdiscMessage()
    message["index"], message["handle"], message["parent"] = index, handle, parent
    return message
