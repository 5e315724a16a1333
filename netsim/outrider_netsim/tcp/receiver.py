"""The receiving half of a connection: puts segments in order and decides when to acknowledge (RFC 1122, 2018, 2883)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from outrider_netsim.tcp.packet import Range, TcpPacket
from outrider_netsim.tcp.rtt import TcpRttEstimator
from outrider_netsim.tcp.timer import Clock, Timer

DELAYED_ACK_S = 0.04
QUICK_ACKS = 16  # at the start and after trouble, every segment is acknowledged at once
MOST_BLOCKS = 4  # remembered; three fit beside the timestamps
SENT_BLOCKS = 3
LEAST_SEGMENT_BYTES = 536
# The receive window itself is not modeled, but its growth: while it grows, every segment is acknowledged.
FIRST_WINDOW_BYTES, FIRST_CLAMP_BYTES = 65_536, 80_512  # of net.ipv4.tcp_rmem = 131072
FIRST_SPACE_BYTES = 14_480  # ten segments
LEAST_GROWING_BYTES = 128  # smaller segments do not let it grow
# SACK compression: after three duplicates, acknowledgments wait for up to 1 ms (tcp_comp_sack_delay_ns).
PROMPT_DUPLICATES = 3
COMPRESSION_S = 0.001
MOST_COMPRESSED = 44


class ReceivedStream:
    """What has arrived, in order and beyond. `acknowledge` sends an acknowledgment at once."""

    def __init__(self, clock: Clock, rtt: TcpRttEstimator, acknowledge: Callable[[], None]) -> None:
        self.next = 0  # everything before has arrived
        self.acked = 0  # and this far it was acknowledged
        self.fin: int | None = None
        self._clock = clock
        self._rtt = rtt
        self._acknowledge = acknowledge
        self._blocks: list[Range] = []  # beyond a gap, the latest first
        self._beyond: list[Range] = []  # the same, all of them, in order
        self._duplicate: Range | None = None
        self._delayed = Timer(clock, self._acknowledge)
        self._compressed = Timer(clock, self._acknowledge, exact=True)
        self._num_compressed = 0
        self._num_duplicates, self._duplicates_of = 0, -1
        self._quick = QUICK_ACKS
        self._is_conversation = False  # answers carry the acknowledgments ("pingpong")
        self._small = 0  # segments less than full since the last acknowledgment
        self._segment_bytes = LEAST_SEGMENT_BYTES
        self._received_at = -1.0
        self._window, self._clamp = FIRST_WINDOW_BYTES, FIRST_CLAMP_BYTES
        # Dynamic right-sizing: what arrived in the last round trip, and when this one began.
        self._space = FIRST_SPACE_BYTES
        self._round_from, self._round_began_at, self._round_trip_s, self._last_echo_ms = 0, clock.now, 0.0, 0

    @property
    def is_complete(self) -> bool:
        """True when the end of the stream has arrived."""
        return self.fin is not None and self.next > self.fin

    @property
    def sacks(self) -> tuple[Range, ...]:
        """The blocks to report: a D-SACK first, then the latest."""
        if self._duplicate is not None:
            return (self._duplicate, *self._blocks[: SENT_BLOCKS - 1])
        return tuple(self._blocks[:SENT_BLOCKS])

    def take(self, packet: TcpPacket) -> int:
        """Take a segment and return how many bytes it has put in order; `check_ack` must follow."""
        if packet.fin:
            self.fin = packet.end - 1
        if packet.end <= self.next:
            self.report_duplicate(packet.seq, packet.end)
            return 0
        if self._has(packet.seq, packet.end):
            self._duplicate = (packet.seq, packet.end)
            return 0
        self._note_arrival(packet.end - packet.seq - packet.fin)
        self._note_round_trip(packet)
        if packet.seq > self.next:
            self._put_beyond(packet.seq, packet.end)
            return 0
        before = self.next
        if packet.seq < before:
            self._duplicate = (packet.seq, before)
        self.next = packet.end
        while self._beyond and self._beyond[0][0] <= self.next:
            self.next = max(self.next, self._beyond.pop(0)[1])
        if self._blocks:
            self._blocks = [block for block in self._blocks if block[1] > self.next]
            if not self._beyond:
                # The gap is closed: the sender should know at once.
                self._small = 2
        self._size_window()
        return self.next - before

    def report_duplicate(self, seq: int, end: int) -> None:
        """Have a D-SACK sent for what had arrived before."""
        self._quick = QUICK_ACKS
        self._is_conversation = False
        self._duplicate = (seq, end)

    def check_ack(self, *, is_new: bool) -> None:
        """Acknowledge now, later or with others (__tcp_ack_snd_check)."""
        if (
            (self._duplicate is not None and not is_new)
            or self.next - self.acked > self._segment_bytes
            or self._small >= 2
            or (self._small and not self._is_conversation)
            or (self._quick and not self._is_conversation)
            or self.is_complete
        ):
            self._acknowledge()
        elif self._beyond:
            self._compress()
        elif is_new and not self._delayed.is_set:
            self._delayed.set(DELAYED_ACK_S)

    def sent_ack(self) -> None:
        """Take that an acknowledgment was sent, alone or with data."""
        self.acked = self.next
        self._duplicate = None
        self._small = 0
        self._num_compressed = 0
        self._quick = max(0, self._quick - 1)
        self._delayed.cancel()
        self._compressed.cancel()

    def sent_data(self) -> None:
        """Take that data was sent: soon after data came, it is an answer."""
        if self._clock.now - self._received_at < DELAYED_ACK_S:
            self._is_conversation = True

    def stop(self) -> None:
        """Acknowledge nothing any more."""
        self._delayed.cancel()
        self._compressed.cancel()

    def _note_arrival(self, size_bytes: int) -> None:
        now = self._clock.now
        if self._received_at >= 0 and now - self._received_at > self._rtt.rto_s:
            self._quick = QUICK_ACKS
        self._received_at = now
        if size_bytes >= self._segment_bytes:
            self._segment_bytes = size_bytes
        else:
            self._small += 1
        if size_bytes >= LEAST_GROWING_BYTES and self._window < self._clamp:
            self._window = min(self._clamp, self._window + 2 * size_bytes)
            self._quick |= 1

    def _note_round_trip(self, packet: TcpPacket) -> None:
        """Measure from an acknowledgment to the data that it made room for (tcp_rcv_rtt_measure_ts)."""
        if packet.echo_ms == self._last_echo_ms or packet.end - packet.seq < self._segment_bytes:
            return
        self._last_echo_ms = packet.echo_ms
        sample_s = max(0.001, self._clock.now - packet.echo_ms / 1000)
        self._round_trip_s += (sample_s - self._round_trip_s) / (8 if self._round_trip_s else 1)

    def _size_window(self) -> None:
        """Once a round trip, make room for twice of what comes, and more if that grows (tcp_rcv_space_adjust)."""
        now = self._clock.now
        if not self._round_trip_s or now - self._round_began_at < self._round_trip_s:
            return
        copied, self._round_from, self._round_began_at = self.next - self._round_from, self.next, now
        if copied > self._space:
            self._clamp = max(self._clamp, 2 * copied + 4 * copied * (copied - self._space) // self._space)
            self._space = copied

    def _compress(self) -> None:
        if self._duplicates_of != self.next:
            self._duplicates_of, self._num_duplicates = self.next, 0
        if self._num_duplicates < PROMPT_DUPLICATES or self._num_compressed >= MOST_COMPRESSED:
            self._num_duplicates += 1
            self._acknowledge()
            return
        self._num_compressed += 1
        if not self._compressed.is_set:
            self._compressed.set(min(COMPRESSION_S, self._rtt.srtt_s / 20) if self._rtt.srtt_s else COMPRESSION_S)

    def _has(self, seq: int, end: int) -> bool:
        place = bisect_left(self._beyond, (seq + 1,)) - 1
        return place >= 0 and self._beyond[place][1] >= end

    def _put_beyond(self, seq: int, end: int) -> None:
        beyond = self._beyond
        place = bisect_left(beyond, (seq,))
        if place and beyond[place - 1][1] == seq:
            place -= 1
            seq = beyond.pop(place)[0]
        if place < len(beyond) and beyond[place][0] == end:
            end = beyond.pop(place)[1]
        beyond.insert(place, (seq, end))
        kept = [block for block in self._blocks if block[1] <= seq or end <= block[0]]
        self._blocks = [block for block in kept if block[1] != seq and block[0] != end]
        if len(self._blocks) == MOST_BLOCKS and self._num_compressed:
            # The oldest block would be forgotten before it was reported (tcp_sack_compress_send_ack).
            self._acknowledge()
        self._blocks = [(seq, end), *self._blocks[: MOST_BLOCKS - 1]]
