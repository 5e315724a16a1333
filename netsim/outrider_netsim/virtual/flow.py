"""Compute when messages arrive over a lossy path, whole and in order, as over TCP. In virtual time.

    send -> segments of 1448 bytes -> [ data path ] -> put in order -> message arrives
              ^ again, when lost                          |
              +--------------- [ ack path ] <-------------+     one per packet, with everything received so far

The rules of retransmission, in TCP's terms and without its congestion control:

1. Up to WINDOW_PACKETS are under way unacknowledged. The window is constant: a flow never slows down.
2. SRTT and RTTVAR are smoothed over every acknowledged packet (RFC 6298, section 2; an ack says which transmission it
   answers, as timestamps do, so Karn's exception is not needed).
3. A packet is sent again when one sent after it was acknowledged and SRTT + min(SRTT, max(SRTT / 4, 4 RTTVAR)) have
   passed since it was sent. This is RACK (RFC 8985), with jitter in place of its adaptation to reordering.
4. When no new packet is acknowledged for RTO = SRTT + max(200 ms, 4 RTTVAR), initially 1 s (RFC 6298 with Linux's
   minimum), all count as lost, the oldest is sent again, alone, and RTO doubles, up to 120 s. The first new ack opens
   the window again. After 15 doublings in a row, about 20 minutes, the flow is broken (Linux's tcp_retries2).

There is no tail loss probe: the last packet of a message, when lost, takes an RTO, as a lone packet does in Linux.
Acks are never delayed. Packets count 66 bytes more than they carry: Ethernet, IPv4 and TCP with timestamps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider_netsim.virtual.clock import VirtualClock

SEGMENT_BYTES = 1448
HEADER_BYTES = 66
WINDOW_PACKETS = 256
FIRST_RTO_S = 1.0
LEAST_VARIATION_S = 0.2
LONGEST_RTO_S = 120.0
MOST_RETRIES = 15

SendPacket = Callable[[int, Callable[[], None]], None]  # (size in bytes, callback on arrival)


@dataclass(frozen=True, slots=True)
class _Transmission:
    """One transmission of a segment."""

    number: int
    segment: int
    size_bytes: int
    sent_at: float


class TcpRttEstimator:
    """The smoothed round trip and the two timeouts derived from it."""

    def __init__(self) -> None:
        self.srtt_s = 0.0
        self.rttvar_s = 0.0
        self._doublings = 0

    def measured(self, sample_s: float) -> None:
        """Update with the round trip of an acknowledged packet; ends the doubling."""
        self._doublings = 0
        if not self.srtt_s:
            self.srtt_s, self.rttvar_s = sample_s, sample_s / 2
            return
        self.rttvar_s += (abs(self.srtt_s - sample_s) - self.rttvar_s) / 4
        self.srtt_s += (sample_s - self.srtt_s) / 8

    def double(self) -> int:
        """Double the timeout after silence and return how often in a row that happened."""
        self._doublings += 1
        return self._doublings

    @property
    def rto_s(self) -> float:
        first = self.srtt_s + max(LEAST_VARIATION_S, 4 * self.rttvar_s) if self.srtt_s else FIRST_RTO_S
        return float(min(LONGEST_RTO_S, first * 2**self._doublings))

    @property
    def lost_after_s(self) -> float:
        """Return the age at which a packet counts as lost once a later one was acknowledged."""
        return self.srtt_s + min(self.srtt_s, max(self.srtt_s / 4, 4 * self.rttvar_s))


class Flow:
    """One direction of a connection. Calls `broken` once, when it gives up."""

    def __init__(
        self, clock: VirtualClock, data: SendPacket, acks: SendPacket, broken: Callable[[], None] = lambda: None
    ) -> None:
        self.rtt = TcpRttEstimator()
        self.packets_sent_again = 0
        self.is_broken = False
        self._clock = clock
        self._data = data
        self._broken = broken
        self._receiver = _Receiver(acks, self._acked)
        self._segments = 0  # cut so far
        self._transmissions = 0
        self._newest_acked = 0
        self._acked_below = 0  # all earlier segments, and those in the set, have arrived
        self._acked_ahead: set[int] = set()
        self._new: deque[tuple[int, int]] = deque()  # (segment, size) to send
        self._lost: deque[tuple[int, int]] = deque()  # to send again before anything new; may be acknowledged meanwhile
        self._under_way: dict[int, _Transmission] = {}  # by segment: its last transmission; the oldest first
        self._probing = False  # after an RTO: one packet only until an ack comes
        self._rto_at = 0.0
        self._timer_at: float | None = None

    def send(self, size_bytes: int, arrived: Callable[[], None]) -> None:
        """Send a message now (0 bytes are one empty packet) and call `arrived` when it arrives.

        Raises TimeoutError on a broken flow.
        """
        if self.is_broken:
            raise TimeoutError(gave_up(self._clock.now))
        for start in range(0, max(1, size_bytes), SEGMENT_BYTES):
            self._new.append((self._segments, min(SEGMENT_BYTES, size_bytes - start) + HEADER_BYTES))
            self._segments += 1
        self._receiver.expect(self._segments, arrived)
        if not self._under_way:
            self._rto_at = self._clock.now + self.rtt.rto_s
        self._fill_window()

    def arrival(self, size_bytes: int, now: float) -> float:
        """Run the clock to `now`, send a message, and return the time in seconds at which it arrives.

        Raises TimeoutError when the flow gives up.
        """
        self._clock.run_until(now)
        times: list[float] = []
        self.send(size_bytes, lambda: times.append(self._clock.now))
        while not times:
            if self.is_broken:
                raise TimeoutError(gave_up(self._clock.now))
            self._clock.step()
        return times[0]

    def _fill_window(self) -> None:
        window = 1 if self._probing else WINDOW_PACKETS
        while len(self._under_way) < window and (self._lost or self._new):
            segment, size_bytes = (self._lost or self._new).popleft()
            if not self._is_acked(segment):
                self._transmit(segment, size_bytes)
        self._set_timer()

    def _transmit(self, segment: int, size_bytes: int) -> None:
        self._transmissions += 1
        sending = _Transmission(self._transmissions, segment, size_bytes, self._clock.now)
        self._under_way[segment] = sending
        self._data(size_bytes, lambda: self._receiver.take(sending))

    def _acked(self, answered: _Transmission, next_segment: int) -> None:
        """Handle an ack of one transmission; all segments before `next_segment` have arrived."""
        # Acks may be reordered too: an old one must not move anything backwards.
        if next_segment <= self._acked_below and self._is_acked(answered.segment):
            return
        self._note(answered.segment, next_segment)
        self._newest_acked = max(self._newest_acked, answered.number)
        self.rtt.measured(self._clock.now - answered.sent_at)
        self._probing = False
        self._rto_at = self._clock.now + self.rtt.rto_s
        self._fill_window()

    def _note(self, segment: int, next_segment: int) -> None:
        for arrived in (segment, *range(self._acked_below, next_segment)):
            self._under_way.pop(arrived, None)
        self._acked_ahead.add(segment)
        self._acked_ahead.difference_update(range(self._acked_below, next_segment))
        self._acked_below = max(self._acked_below, next_segment)

    def _is_acked(self, segment: int) -> bool:
        return segment < self._acked_below or segment in self._acked_ahead

    def _set_timer(self) -> None:
        due = self._next_due()
        if due is not None and (self._timer_at is None or due < self._timer_at):
            self._timer_at = due
            self._clock.call_at(due, self._timer)

    def _next_due(self) -> float | None:
        if not self._under_way:
            return None
        oldest = next(iter(self._under_way.values()))
        if oldest.number < self._newest_acked:
            return min(self._rto_at, oldest.sent_at + self.rtt.lost_after_s)
        return self._rto_at

    def _timer(self) -> None:
        if self._timer_at is None or self._clock.now < self._timer_at:
            # An earlier timer has replaced this one.
            return
        self._timer_at = None
        due = self._next_due()
        if due is not None and due <= self._clock.now:
            self._send_again(all_of_them=due == self._rto_at)
        self._set_timer()

    def _send_again(self, *, all_of_them: bool) -> None:
        """Retransmit all packets after a timeout (rule 4), or those that later ones have overtaken (rule 3)."""
        if all_of_them:
            lost = list(self._under_way.values())
            self._probing = True
            if self.rtt.double() > MOST_RETRIES:
                self._give_up()
                return
            self._rto_at = self._clock.now + self.rtt.rto_s
        else:
            lost = [sending for sending in self._under_way.values() if self._is_overtaken(sending)]
        # Deleted, not overwritten later: a dict keeps its order, and the first entry must be the oldest.
        for sending in lost:
            del self._under_way[sending.segment]
        self.packets_sent_again += len(lost)
        self._lost.extend((sending.segment, sending.size_bytes) for sending in lost)
        self._fill_window()

    def _is_overtaken(self, sending: _Transmission) -> bool:
        is_due = sending.sent_at + self.rtt.lost_after_s <= self._clock.now
        return is_due and sending.number < self._newest_acked

    def _give_up(self) -> None:
        self.is_broken = True
        self._new.clear()
        self._lost.clear()
        self._under_way.clear()
        self._broken()


class _Receiver:
    """The far end: orders segments, reports complete messages and acknowledges every packet."""

    def __init__(self, acks: SendPacket, acked: Callable[[_Transmission, int], None]) -> None:
        self._acks = acks
        self._acked = acked
        self._next = 0  # the first segment not yet received
        self._ahead: set[int] = set()
        self._messages: deque[tuple[int, Callable[[], None]]] = deque()  # with the segment after its last one

    def expect(self, end: int, arrived: Callable[[], None]) -> None:
        self._messages.append((end, arrived))

    def take(self, sending: _Transmission) -> None:
        if sending.segment >= self._next:
            self._ahead.add(sending.segment)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        next_segment = self._next
        self._acks(HEADER_BYTES, lambda: self._acked(sending, next_segment))
        while self._messages and self._messages[0][0] <= self._next:
            self._messages.popleft()[1]()


def gave_up(now: float) -> str:
    """Return the error message of a broken flow."""
    return (
        f"at {now:g} s a packet was sent {MOST_RETRIES + 1} times without an answer: restore the link and connect again"
    )
