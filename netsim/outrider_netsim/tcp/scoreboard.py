"""The sender's knowledge of what is under way, and RACK, which tells from it what is lost (RFC 8985)."""

from __future__ import annotations

import heapq
import math
from collections import deque

from outrider_netsim.tcp.packet import SEGMENT_BYTES, AckNews, Range, SentSegment
from outrider_netsim.tcp.rtt import TcpRttEstimator

DUPLICATE_ACKS = 3
MAX_REORDERING = 300
PERSISTENT_RECOVERIES = 16


class Scoreboard:
    """Segments under way in order, with Linux's counters of them in packets (Documentation: tcp_input.c, SACK tags)."""

    def __init__(self, rtt: TcpRttEstimator) -> None:
        self.segments: deque[SentSegment] = deque()
        self.sacked = 0
        self.lost = 0
        self.sent_again = 0
        self.losses = 0  # ever marked
        self.total_sent_again = 0
        self.reordering = DUPLICATE_ACKS  # the largest distance seen, in packets
        self.saw_reordering = False
        self._rtt = rtt
        self.by_seq: dict[int, SentSegment] = {}
        self._by_time: dict[int, SentSegment] = {}  # by when they were sent last; without sacked and lost ones
        self._lost_seqs: list[int] = []  # a heap, cleared lazily
        self.highest_sacked = 0  # end of that segment; 0 without any
        self._duplicates = 0
        # RACK: the segment sent last of those delivered.
        self._rack_sent_at = -math.inf
        self._rack_end = 0
        self._rack_rtt_s = 0.0
        self.rack_advanced = False
        self._steps = 1
        self._persistence = 0
        self._saw_duplicate = False
        self._delivered = self._adapted_at = 0
        # Of the newest segment that this acknowledgment delivered.
        self._newest_sent_at, self._newest_saw = -math.inf, 0

    @property
    def in_flight(self) -> int:
        return len(self.segments) - self.sacked - self.lost + self.sent_again

    def add(self, segment: SentSegment) -> None:
        """Take a segment that is sent for the first time."""
        segment.delivered_before = self._delivered
        self.segments.append(segment)
        self.by_seq[segment.seq] = segment
        self._by_time[segment.seq] = segment

    def resent(self, segment: SentSegment, now: float) -> None:
        """Take that a segment was sent again."""
        segment.sent_at = now
        segment.delivered_before = self._delivered
        segment.was_sent_again = True
        self.total_sent_again += 1
        self._by_time.pop(segment.seq, None)
        self._by_time[segment.seq] = segment

    def collapse(self, segment: SentSegment, una: int) -> None:
        """Join a small segment that is sent again with those behind it (tcp_retrans_try_collapse), from `una` on."""
        if segment.seq < una:
            del self.by_seq[segment.seq]
            self._by_time.pop(segment.seq, None)
            segment.seq = una
            self.by_seq[una] = segment
        room = SEGMENT_BYTES - (segment.end - segment.seq - segment.fin)
        while (other := self.by_seq.get(segment.end)) is not None and not other.is_sacked:
            room -= other.end - other.seq - other.fin
            if room < 0:
                break
            self.lost -= other.is_lost
            self.sent_again -= other.is_sent_again
            segment.end, segment.fin = other.end, other.fin
            segment.was_sent_again |= other.was_sent_again
            self.segments.remove(other)
            del self.by_seq[other.seq]
            self._by_time.pop(other.seq, None)

    def next_lost(self) -> SentSegment | None:
        """Return the first lost segment that was not sent again yet."""
        heap = self._lost_seqs
        while heap:
            segment = self.by_seq.get(heap[0])
            if segment is not None and segment.is_lost and not segment.is_sent_again and not segment.is_sacked:
                return segment
            heapq.heappop(heap)
        return None

    def take_sacks(self, sacks: tuple[Range, ...], una: int, high: int, news: AckNews, now: float) -> None:
        """Mark what was acknowledged selectively (tcp_sacktag_write_queue, without the D-SACK)."""
        first_reordered: int | None = None
        for start, end in sacks:
            seq = max(start, una)
            while seq < end:
                segment = self.by_seq.get(seq)
                if segment is None:
                    # Inside one that was joined of several, of which the first ones have not arrived.
                    seq = next((later.seq for later in self.segments if later.seq > seq), end)
                    continue
                seq = segment.end
                if seq > end:
                    break
                if not segment.is_sacked:
                    first_reordered = self._sack(segment, high, first_reordered, news, now)
        if first_reordered is not None:
            self.note_reordering(first_reordered, una)

    def _sack(
        self, segment: SentSegment, high: int, first_reordered: int | None, news: AckNews, now: float
    ) -> int | None:
        self._advance_rack(segment, now)
        self._note_newest(segment)
        if segment.is_sent_again:
            if segment.is_lost:
                segment.is_lost = segment.is_sent_again = False
                self.lost -= 1
                self.sent_again -= 1
        else:
            if not segment.was_sent_again:
                if segment.seq < self.highest_sacked and (first_reordered is None or segment.seq < first_reordered):
                    first_reordered = segment.seq
                news.original_arrived |= segment.end <= high
                news.sacked_sent_at.append(segment.sent_at)
            if segment.is_lost:
                segment.is_lost = False
                self.lost -= 1
        segment.is_sacked = True
        self.sacked += 1
        self._by_time.pop(segment.seq, None)
        self.highest_sacked = max(self.highest_sacked, segment.end)
        news.sacked = True
        news.delivered += 1
        self._delivered += 1
        return first_reordered

    def take_duplicate(self, block: Range, probe_ends: int | None, news: AckNews) -> int:
        """Count a D-SACK and return the segments it proves needless: 0 for one that is not of ours."""
        news.dsacked = True
        start, end = block
        count = max(1, -(-(end - start) // SEGMENT_BYTES))
        if probe_ends == end and end - start <= SEGMENT_BYTES:
            news.dsacked_probe = True
        self._duplicates += count
        if self._duplicates > self.total_sent_again:
            return 0
        # RACK waits longer after a needless retransmission, if that may be due to reordering.
        if self.saw_reordering and not news.dsacked_probe:
            self._saw_duplicate = True
        return count

    def acknowledge(self, ack: int, high: int, prior_edge: int, news: AckNews, now: float) -> None:
        """Drop everything before `ack` (tcp_clean_rtx_queue)."""
        segments = self.segments
        first_reordered: int | None = None
        while segments and segments[0].end <= ack:
            segment = segments.popleft()
            del self.by_seq[segment.seq]
            self._by_time.pop(segment.seq, None)
            news.acked = True
            if segment.was_sent_again:
                if segment.is_sent_again:
                    self.sent_again -= 1
                news.acked_again = True
            elif not segment.is_sacked:
                news.sent_at.append(segment.sent_at)
                if first_reordered is None and segment.seq < prior_edge:
                    first_reordered = segment.seq
                news.original_arrived |= segment.end <= high
            if segment.is_sacked:
                self.sacked -= 1
            else:
                news.delivered += 1
                self._delivered += 1
                # Not if the first transmission has arrived: what was sent before the second one need not be lost.
                if not segment.was_sent_again or news.echo_ms >= int(segment.sent_at * 1000):
                    self._advance_rack(segment, now)
                self._note_newest(segment)
            if segment.is_lost:
                self.lost -= 1
        if not self.sacked:
            self.highest_sacked = 0
        if first_reordered is not None:
            self.note_reordering(first_reordered, ack)

    def note_reordering(self, seq: int, una: int) -> None:
        """Take that `seq` arrived after the highest acknowledged segment (tcp_check_sack_reordering)."""
        edge = self.highest_sacked or una
        if seq < edge:
            distance = -(-(edge - seq) // SEGMENT_BYTES)
            self.reordering = max(self.reordering, min(MAX_REORDERING, distance))
            self.saw_reordering = True

    def _advance_rack(self, segment: SentSegment, now: float) -> None:
        rtt_s = now - segment.sent_at
        if segment.was_sent_again and rtt_s < self._rtt.min_s:
            # Too early for an answer to the retransmission: the first transmission has arrived.
            return
        self.rack_advanced = True
        self._rack_rtt_s = rtt_s
        if (segment.sent_at, segment.end) > (self._rack_sent_at, self._rack_end):
            self._rack_sent_at, self._rack_end = segment.sent_at, segment.end

    def _note_newest(self, segment: SentSegment) -> None:
        if segment.sent_at >= self._newest_sent_at:
            self._newest_sent_at, self._newest_saw = segment.sent_at, segment.delivered_before

    def adapt_window(self) -> None:
        """Widen the reordering window after a D-SACK, at most once a round trip (tcp_rack_update_reo_wnd)."""
        saw, self._newest_saw, self._newest_sent_at = self._newest_saw, 0, -math.inf
        if not saw:
            return
        if saw < self._adapted_at:
            self._saw_duplicate = False
        if self._saw_duplicate:
            self._saw_duplicate = False
            self._steps = min(255, self._steps + 1)
            self._adapted_at = self._delivered
            self._persistence = PERSISTENT_RECOVERIES
        elif not self._persistence:
            self._steps = 1

    def recovered(self, *, undone: bool) -> None:
        """Take the end of a recovery: after 16 without need, the window is narrow again."""
        self._persistence = (
            min(PERSISTENT_RECOVERIES, self._persistence + 1) if undone else max(0, self._persistence - 1)
        )

    @property
    def was_resent(self) -> bool:
        """True while a retransmission is under way, or made of the first segment (tcp_any_retrans_done)."""
        return self.sent_again > 0 or (bool(self.segments) and self.segments[0].was_sent_again)

    def window_s(self, *, recovering: bool) -> float:
        """Return how much later than RACK's segment one may arrive (tcp_rack_reo_wnd)."""
        if not self.saw_reordering and (recovering or self.sacked >= self.reordering):
            return 0.0
        return min(self._rtt.min_s / 4 * self._steps, self._rtt.srtt_s)

    def detect_losses(self, now: float, *, recovering: bool) -> float:
        """Mark what RACK counts as lost and return in how many seconds to look again, 0 for not at all."""
        window_s = self.window_s(recovering=recovering)
        wait_s = 0.0
        overdue = []
        for segment in self._by_time.values():
            if (segment.sent_at, segment.end) >= (self._rack_sent_at, self._rack_end):
                break
            if segment.is_lost and not segment.is_sent_again:
                continue
            remaining_s = self._rack_rtt_s + window_s - (now - segment.sent_at)
            if remaining_s <= 0:
                overdue.append(segment)
            else:
                wait_s = max(wait_s, remaining_s)
        for segment in overdue:
            self._mark_lost(segment)
            self._by_time.pop(segment.seq, None)
        return wait_s

    def time_out(self, now: float) -> None:
        """Mark everything lost but what was sent a moment ago (tcp_timeout_mark_lost)."""
        head = self.segments[0]
        limit_s = self._rack_rtt_s + self.window_s(recovering=True)
        for segment in self.segments:
            if segment is head or now - segment.sent_at >= limit_s:
                self._mark_lost(segment)

    def _mark_lost(self, segment: SentSegment) -> None:
        if segment.is_sacked:
            return
        if segment.is_sent_again:
            segment.is_sent_again = False
            self.sent_again -= 1
        elif segment.is_lost:
            return
        if not segment.is_lost:
            segment.is_lost = True
            self.lost += 1
        self.losses += 1
        heapq.heappush(self._lost_seqs, segment.seq)

    def unmark_losses(self) -> None:
        """Count nothing as lost any more."""
        # As in Linux, RACK does not look at them again: those that did get lost take a probe or a timeout.
        for segment in self.segments:
            segment.is_lost = False
        self.lost = 0
        self._lost_seqs.clear()
