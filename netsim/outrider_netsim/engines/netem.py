"""What of a Direction the kernel is told: a token bucket (tbf) as root and netem in it. Knows values, not messages.

    packets -> [ netem: loss, at most `queue_packets` in it, each its delay, sorted by time ] -> [ tbf: rate ] -> veth

netem without a rate of its own sends whatever is due first, so jitter reorders; tbf behind it has the rate. netem with
a rate never lets a packet leave before the one before it: that is `in_order`, and tbf then lets everything through. The
pair is the same for every direction, so that each can be changed into any other without a packet under way being lost;
What netem loses and what its full queue turns away are one count in both, so the two cannot be told apart.

A delay is `latency + jitter * entry / 8192` for an entry that netem picks from a table of signed 16-bit numbers, all
alike. Ours is the quantile function of base + max(0, X) at the middles of 4096 equal shares, and `jitter` so large that
the outermost entry fits: tables scaled by the deviation, as tc's, clip what is over 4 deviations from the mean.

Sources: net/sched/sch_netem.c (tabledist, netem_enqueue, loss_event, loss_gilb_ell), net/sched/sch_tbf.c of Linux 6.1.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import lru_cache

from outrider_netsim.core.errors import EngineError
from outrider_netsim.profiles.delays import Distribution
from outrider_netsim.profiles.profile import Bursts, Direction

TABLE_ENTRIES = 4096  # a power of two, so that the kernel's `random % entries` is fair; it takes up to 16384
TABLE_SCALE = 8192  # NETEM_DIST_SCALE
ENTRY_MAX = 32767
JITTER_MAX_NS = 2**31 - 1  # netem_change() caps it there, silently
LOSS_ALL = 2**32 - 1
UNLIMITED_BPS = 1e12  # a full frame in 12 ns
FRAME_BYTES = 1514  # a full packet and its Ethernet header
BURST_S = 0.001  # what tbf may send at once after a pause; above the lateness of a high-resolution timer
NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class DelayTable:
    """netem's delay: `latency_ns` + `jitter_ns` * entry / 8192."""

    latency_ns: int
    jitter_ns: int
    entries: tuple[int, ...]  # empty: none needed, for jitter_ns is 0


@dataclass(frozen=True, slots=True)
class BurstLoss:
    """struct tc_netem_gemodel; shares of 2^32 - 1. `h` is the share that passes in the bad state, `k1` is lost in the
    good one."""

    p: int
    r: int
    h: int
    k1: int


@dataclass(frozen=True, slots=True)
class Netem:
    """One netem. `rate_bytes` a second, 0: none; then packets may overtake each other."""

    limit: int
    delay: DelayTable
    loss: int  # share of 2^32 - 1
    bursts: BurstLoss | None
    rate_bytes: int
    seed: int


@dataclass(frozen=True, slots=True)
class Tbf:
    """One token bucket. `limit_bytes` holds only until netem takes the place of its queue."""

    rate_bytes: int
    burst_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class QdiscConfig:
    """The qdiscs of one end: `tbf` at the root, `netem` in it."""

    tbf: Tbf
    netem: Netem


def qdisc_config(direction: Direction, seed: int, *, is_cut: bool = False) -> QdiscConfig:
    """How the kernel makes `direction`, its trace left aside. Raises EngineError where netem cannot."""
    delay = delay_table(direction.distribution, direction.delay_ms, direction.jitter_ms, direction.base_ms)
    rate = direction.rate_bps or UNLIMITED_BPS
    # Constant delays reorder nothing, and netem's own rate is exact.
    ordered = direction.in_order or not direction.jitter_ms
    netem = Netem(
        limit=direction.queue_packets,
        delay=delay,
        loss=LOSS_ALL if is_cut else share_of_u32(direction.loss),
        bursts=_burst_loss(direction.bursts) if direction.bursts and not is_cut else None,
        rate_bytes=_bytes_a_second(rate) if ordered else 0,
        seed=seed,
    )
    return QdiscConfig(_bucket(UNLIMITED_BPS if ordered else rate, direction.queue_packets), netem)


def share_of_u32(share: float) -> int:
    """A probability as netem takes it: 0 none, 2^32 - 1 all."""
    return round(share * LOSS_ALL)


@lru_cache(maxsize=256)  # a trace comes back to its delays, and a link cuts and restores its own
def delay_table(distribution: Distribution, delay_ms: float, jitter_ms: float, base_ms: float) -> DelayTable:
    """The table of base + max(0, X). Raises EngineError for a spread that netem cannot hold."""
    law = Direction(delay_ms, jitter_ms, distribution, base_ms=base_ms)
    latency = round(law.mean_delay_ms * NS_PER_MS)
    if not jitter_ms:
        return DelayTable(latency, 0, ())
    shares = ((i + 0.5) / TABLE_ENTRIES for i in range(TABLE_ENTRIES))
    away = [law.quantile_s(u) * 1e9 - latency for u in shares]  # from the mean, ns, in rising order
    reach = max(-away[0], away[-1])
    jitter = max(1, round(law.delay_deviation_ms * NS_PER_MS), -int(-reach * TABLE_SCALE // ENTRY_MAX))
    if jitter > JITTER_MAX_NS:
        raise EngineError(
            f"jitter_ms={jitter_ms:g}: netem's delays spread over {4 * JITTER_MAX_NS / 1e9:.1f} s around the mean at "
            "most; take less jitter, or use --engine tun"
        )
    return DelayTable(latency, jitter, tuple(round(x * TABLE_SCALE / jitter) for x in away))


def table_bytes(table: DelayTable) -> bytes:
    """The entries as the kernel reads them: s16 in its own byte order."""
    return array("h", table.entries).tobytes()


def _burst_loss(bursts: Bursts) -> BurstLoss:
    """The kernel draws the loss in the state that the packet before it left behind, so its chain runs one packet late;
    the laws are the same."""
    share = share_of_u32
    return BurstLoss(p=share(bursts.p), r=share(bursts.r), h=share(1 - bursts.bad), k1=share(bursts.good))


def _bucket(rate_bps: float, queue_packets: int) -> Tbf:
    rate = _bytes_a_second(rate_bps)
    return Tbf(rate, max(2 * FRAME_BYTES, round(rate * BURST_S)), min(queue_packets * FRAME_BYTES, 2**32 - 1))


def _bytes_a_second(rate_bps: float) -> int:
    return max(1, round(rate_bps / 8))
