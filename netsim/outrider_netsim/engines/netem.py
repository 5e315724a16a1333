"""Translate a Direction to kernel qdiscs: a token bucket (tbf) at the root and netem in it. Values, not messages.

    packets -> [ netem: loss, at most `queue_packets` in it, each its delay, sorted by time ] -> [ tbf: rate ] -> veth

netem without a rate of its own sends whatever is due first, so jitter reorders; tbf behind it has the rate. netem with
a rate never lets a packet overtake: that is `in_order`, and tbf then lets everything through. Every direction has both
qdiscs, so that each can be changed into any other without losing packets under way. Losses and packets that the full
queue refuses share one counter and cannot be told apart.

    packets -> [ netem: loss, delay ] -> [ bfifo: what waits for the rate ] -> [ tbf: rate ] -> veth

That is `queue_bytes`, `queue_ms` and the usual queue: netem hands each packet to the qdisc in it when its delay is
over, and tbf takes them from there. Order is then kept by an endless rate of netem's own, and the real rate is always
tbf's, which lets a packet pass at once after a pause: a lone packet saves its size / rate there, which it takes in
other engines. A change from this to netem's limit, or back, drops the packets in bfifo.

netem cannot correlate delays: its `correlation` is of 32-bit numbers of which tabledist() uses the lowest bits. So with
`coherence_ms` the caller gives the one delay that holds now, and changes it in small steps. Bursty losses are then in a
second netem behind the first, because every change sets their chain back to the good state.

Outages that hold packets have plug in bfifo's place: it stops and starts at a message and has the same limit, so that
in a hold nothing leaves but the one packet that tbf may have looked at before.

`aqm` puts codel or fq_codel in bfifo's place, whose limit is in packets. What they drop late upset the count of packets
in a netem around them until Linux 6.13 and the stable releases of that winter ("account for backlog updates from
child qdisc"); older ones lose everything after the first such drops.

A delay is `latency + jitter * entry / 8192` for an entry that netem picks uniformly from a table of signed 16-bit
numbers. Ours is the quantile function of base + max(0, X) at the middles of 4096 equal shares, with `jitter` just large
enough for the outermost entry: tables scaled by the deviation, as tc's are, clip everything beyond 4 deviations.

Sources: net/sched/sch_netem.c (tabledist, netem_enqueue, loss_event, loss_gilb_ell), net/sched/sch_tbf.c of Linux 6.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from outrider_netsim.core.errors import EngineError
from outrider_netsim.profiles.delays import Distribution
from outrider_netsim.profiles.distribution_table import DistributionTable
from outrider_netsim.profiles.profile import MAX_QUEUE_BYTES, MAX_QUEUE_PACKETS, Bursts, Direction

TABLE_ENTRIES = 4096  # a power of two, so that the kernel's `random % entries` is fair; it takes up to 16384
TABLE_SCALE = 8192  # NETEM_DIST_SCALE
ENTRY_MAX = 32767
JITTER_MAX_NS = 2**31 - 1  # netem_change() caps it there, silently
LOSS_ALL = U32_MAX = 2**32 - 1
UNLIMITED_BPS = 1e12  # a full frame in 12 ns
FRAME_BYTES = 1514  # a full packet and its Ethernet header
BURST_S = 0.001  # what tbf may send at once after a pause; longer than a high-resolution timer is late
NS_PER_MS = 1e6

BufferKind = Literal["bfifo", "plug", "codel", "fq_codel"]


@dataclass(frozen=True, slots=True)
class DelayTable:
    """netem's delay: `latency_ns` + `jitter_ns` * entry / 8192."""

    latency_ns: int
    jitter_ns: int
    entries: tuple[int, ...]  # empty where jitter_ns is 0


@dataclass(frozen=True, slots=True)
class Netem:
    """One netem qdisc. `rate_bytes` is per second; with 0, no rate, packets may overtake each other."""

    limit: int
    delay: DelayTable
    loss: int  # share of 2^32 - 1
    bursts: Bursts | None
    rate_bytes: int
    seed: int
    duplicate: int = 0  # share of 2^32 - 1, as is `corrupt`
    corrupt: int = 0
    slot_ns: int = 0  # 0: no slots


@dataclass(frozen=True, slots=True)
class Tbf:
    """One tbf qdisc. `limit_bytes` holds only until netem replaces its queue."""

    rate_bytes: int
    burst_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class BufferQdisc:
    """The qdisc in netem that holds what waits for tbf; "plug" is a bfifo that can be stopped for a while."""

    kind: BufferKind
    limit: int  # of a bfifo or plug in bytes, else in packets


@dataclass(frozen=True, slots=True)
class QdiscConfig:
    """The qdiscs of one end: tbf at the root and each other one in the one before; the last two may be missing."""

    tbf: Tbf
    netem: Netem
    losses: Netem | None = None
    buffer: BufferQdisc | None = None


def qdisc_config(
    direction: Direction, seed: int, *, is_cut: bool = False, delay_s: float | None = None, holds: bool = False
) -> QdiscConfig:
    """Return the qdiscs for `direction`, ignoring its trace. Raises EngineError where netem cannot.

    `delay_s` is the one delay that holds now, in place of the direction's distribution. With `holds` packets can be
    made to wait: their queue is always a buffer then, and `queue_packets` limits the full packets in it.
    """
    if direction.correlation and direction.jitter_ms:
        raise EngineError(
            f"correlation={direction.correlation:g}: netem draws its delays independently, whatever correlation it is "
            "given; take coherence_ms, or use --engine tun"
        )
    if delay_s is None:
        delay = delay_table(direction.distribution, direction.delay_ms, direction.jitter_ms, direction.base_ms)
    else:
        delay = DelayTable(round(delay_s * 1e9), 0, ())
    rate = direction.rate_bps or UNLIMITED_BPS
    # Constant delays never reorder, so netem's own rate, which is exact, serves them too.
    ordered = direction.in_order or not direction.jitter_ms
    buffer = _buffer(direction, holds=holds)
    packets = direction.queue_packets or MAX_QUEUE_PACKETS
    netem_bps = rate if buffer is None else UNLIMITED_BPS
    netem = Netem(
        limit=MAX_QUEUE_PACKETS if holds else packets,
        delay=delay,
        loss=LOSS_ALL if is_cut else share_of_u32(direction.loss),
        bursts=direction.bursts if not is_cut and delay_s is None else None,
        rate_bytes=_bytes_a_second(netem_bps) if ordered else 0,
        seed=seed,
        duplicate=share_of_u32(direction.duplicate),
        corrupt=share_of_u32(direction.corrupt),
        slot_ns=round(direction.slot_ms * NS_PER_MS),
    )
    losses = _losses(direction.bursts, seed) if direction.bursts and delay_s is not None else None
    if buffer is not None:
        return QdiscConfig(_bucket(rate, FRAME_BYTES, U32_MAX), netem, losses, buffer)
    tbf = _bucket(UNLIMITED_BPS if ordered else rate, 0, packets * FRAME_BYTES)
    return QdiscConfig(tbf, netem, losses)


def share_of_u32(share: float) -> int:
    """Return a probability in netem's units: 0 is none, 2^32 - 1 all."""
    return round(share * LOSS_ALL)


@lru_cache(maxsize=256)  # traces repeat their delays, and links are cut and restored
def delay_table(distribution: Distribution, delay_ms: float, jitter_ms: float, base_ms: float) -> DelayTable:
    """Return the table of base + max(0, X). Raises EngineError for a spread too wide for netem."""
    law = Direction(delay_ms, jitter_ms, distribution, base_ms=base_ms)
    latency = round(law.mean_delay_ms * NS_PER_MS)
    if not jitter_ms:
        return DelayTable(latency, 0, ())
    entries = len(distribution.values) if isinstance(distribution, DistributionTable) else TABLE_ENTRIES
    shares = ((i + 0.5) / entries for i in range(entries))
    # From the mean, ns, in rising order.
    away = [law.quantile_s(u) * 1e9 - latency for u in shares]
    reach = max(-away[0], away[-1])
    # Rounded up, so that the outermost entry never exceeds 16 bits.
    jitter = max(1, round(law.delay_deviation_ms * NS_PER_MS), -int(-reach * TABLE_SCALE // ENTRY_MAX))
    if jitter > JITTER_MAX_NS:
        raise EngineError(
            f"jitter_ms={jitter_ms:g}: netem's delays spread over {4 * JITTER_MAX_NS / 1e9:.1f} s around the mean at "
            "most; take less jitter, or use --engine tun"
        )
    return DelayTable(latency, jitter, tuple(round(x * TABLE_SCALE / jitter) for x in away))


def _losses(bursts: Bursts, seed: int) -> Netem:
    """Return a netem that loses packets in bursts and does nothing else."""
    return Netem(MAX_QUEUE_PACKETS, DelayTable(0, 0, ()), 0, bursts, 0, seed)


def _buffer(direction: Direction, *, holds: bool) -> BufferQdisc | None:
    # The usual queue also without a rate, so that one that comes or goes loses nothing.
    limit_bytes = direction.buffer_bytes if direction.rate_bps or direction.has_usual_queue else None
    packets = direction.queue_packets or MAX_QUEUE_PACKETS
    if holds:
        if direction.aqm != "none":
            raise EngineError(f"aqm={direction.aqm!r} beside an outage that holds packets: use --engine tun")
        return BufferQdisc("plug", limit_bytes or min(packets * FRAME_BYTES, MAX_QUEUE_BYTES))
    if direction.aqm != "none" and direction.rate_bps:
        packets = packets if limit_bytes is None else limit_bytes // FRAME_BYTES
        return BufferQdisc(direction.aqm, packets)
    return None if limit_bytes is None else BufferQdisc("bfifo", limit_bytes)


def _bucket(rate_bps: float, lone_bytes: int, limit_bytes: int) -> Tbf:
    """Return a bucket for `lone_bytes` and what is due while a timer is late."""
    rate = _bytes_a_second(rate_bps)
    # tbf drops every packet that is larger than its burst.
    burst = lone_bytes + round(rate * BURST_S) if lone_bytes else max(2 * FRAME_BYTES, round(rate * BURST_S))
    return Tbf(rate, burst, min(limit_bytes, U32_MAX))


def _bytes_a_second(rate_bps: float) -> int:
    return max(1, round(rate_bps / 8))
