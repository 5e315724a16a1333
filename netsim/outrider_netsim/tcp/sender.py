"""The sending half of a connection: what to send, when to send it again, and the three timers."""

from __future__ import annotations

import enum
from collections.abc import Callable

from outrider_netsim.tcp.congestion import congestion_control
from outrider_netsim.tcp.packet import SEGMENT_BYTES, AckNews, SentSegment, TcpPacket
from outrider_netsim.tcp.recovery import INITIAL_WINDOW, Resend, State, TcpRecovery
from outrider_netsim.tcp.rtt import MIN_RTO_S, TcpRttEstimator
from outrider_netsim.tcp.scoreboard import Scoreboard
from outrider_netsim.tcp.timer import Clock, Timer

SLACK_S = 0.002  # added to timeouts within a round trip (TCP_TIMEOUT_MIN)
GIVE_UP_S = 924.6  # after the first timeout without an answer (tcp_retries2 of 15)


class Pending(enum.Enum):
    """What the sender's timer is set for; it has one, as in Linux."""

    NOTHING = 0
    TIMEOUT = 1  # retransmission timeout
    PROBE = 2  # tail loss probe (RFC 8985, section 7)
    REORDERING = 3  # RACK's wait for packets that were overtaken


class Sender:
    """Cuts bytes into segments and sends them as the window and the acknowledgments allow.

    `transmit` puts a segment on the link; `gave_up` is called once after 15 minutes without an answer.
    """

    def __init__(
        self, clock: Clock, congestion: str, transmit: Callable[[SentSegment], None], gave_up: Callable[[], None]
    ) -> None:
        self.rtt = TcpRttEstimator()
        self.board = Scoreboard(self.rtt)
        self.recovery = TcpRecovery(self.board, congestion_control(congestion))
        self._clock = clock
        self._transmit = transmit
        self._gave_up = gave_up
        self._timer = Timer(clock, self._fired)
        self._pending = Pending.NOTHING
        self._written = 0
        self._fin: int | None = None  # its sequence number
        self._is_open = True
        self._last_sent_at = 0.0
        self._first_timeout_at: float | None = None
        # Whether the window or the program limited what was sent in this round trip (tcp_cwnd_validate).
        self._window_was_full = False
        self._most_out = 0
        self._usage_ends = 0
        self._used = 0
        self._checked_at = clock.now

    @property
    def pending_bytes(self) -> int:
        """Written and not yet acknowledged."""
        return self._written - self.recovery.una

    def write(self, size_bytes: int) -> None:
        """Send that many more bytes; `push` does it."""
        self._restart_after_idle()
        self._written += size_bytes

    def finish(self) -> None:
        """Send the end of the stream after everything written."""
        if self._fin is None:
            self._fin = self._written
            self._written += 1

    def stop(self) -> None:
        """Send nothing any more."""
        self._is_open = False
        self._arm(Pending.NOTHING)

    # Sending

    def push(self) -> bool:
        """Send what the window allows and return whether anything was sent (tcp_write_xmit)."""
        recovery, board = self.recovery, self.board
        sent = 0
        is_full = False
        while self._is_open and recovery.nxt < self._written:
            if board.in_flight >= recovery.cwnd:
                is_full = True
                break
            self._send_next()
            sent += 1
        if sent:
            if recovery.state == State.RECOVERY:
                recovery.resent += sent
            self._schedule_probe(advancing=False)
        if sent or is_full:
            self._validate_window(is_full or board.in_flight >= recovery.cwnd)
        return sent > 0

    def _send_next(self) -> None:
        recovery, now = self.recovery, self._clock.now
        end = min(recovery.nxt + SEGMENT_BYTES, self._written)
        carries_fin = self._fin is not None and end >= self._fin
        if carries_fin:
            # The FIN takes a sequence number but no room.
            end = self._written
        segment = SentSegment(recovery.nxt, end, carries_fin, now)
        had_none = not self.board.segments
        if had_none:
            recovery.congestion.resumed(now - self._last_sent_at, now)
        recovery.nxt = end
        self._last_sent_at = now
        self.board.add(segment)
        self._transmit(segment)
        if had_none or self._pending == Pending.PROBE:
            self._rearm()

    def _resend(self, segment: SentSegment) -> None:
        now = self._clock.now
        self.board.collapse(segment, self.recovery.una)
        self.board.resent(segment, now)
        segment.is_sent_again = True
        self.board.sent_again += 1
        self.recovery.note_resent(int(now * 1000))
        self._last_sent_at = now
        self._transmit(segment)

    def _resend_lost(self) -> None:
        """Send lost segments again as the window allows (tcp_xmit_retransmit_queue)."""
        board, recovery = self.board, self.recovery
        while self._is_open and board.in_flight < recovery.cwnd and (segment := board.next_lost()) is not None:
            self._resend(segment)
            if recovery.state == State.RECOVERY:
                recovery.resent += 1
            if segment is board.segments[0] and self._pending != Pending.REORDERING:
                self._arm(Pending.TIMEOUT, self.rtt.rto_s)

    def _restart_after_idle(self) -> None:
        """Halve the window for every timeout that passed without sending (tcp_cwnd_restart, RFC 2861)."""
        recovery = self.recovery
        idle_s = self._clock.now - self._last_sent_at
        if self.board.segments or recovery.nxt < self._written or idle_s <= self.rtt.rto_s:
            return
        recovery.ssthresh = recovery.current_ssthresh()
        least = min(INITIAL_WINDOW, recovery.cwnd)
        halvings = int(idle_s / self.rtt.rto_s)
        if idle_s == halvings * self.rtt.rto_s:
            halvings -= 1
        recovery.cwnd = max(least, recovery.cwnd >> min(halvings, 32))
        self._checked_at = self._clock.now
        self._used = 0

    def _validate_window(self, is_full: bool) -> None:
        recovery, out, now = self.recovery, len(self.board.segments), self._clock.now
        if recovery.una >= self._usage_ends or is_full or (not self._window_was_full and out > self._most_out):
            self._window_was_full = is_full
            self._most_out = out
            self._usage_ends = recovery.nxt
        if self._is_limited_by_window:
            self._used = 0
            self._checked_at = now
            return
        self._used = max(self._used, out)
        if now - self._checked_at >= self.rtt.rto_s:
            self._shrink_unused()

    def _shrink_unused(self) -> None:
        """Go halfway down to what the program makes use of (tcp_cwnd_application_limited)."""
        recovery = self.recovery
        if recovery.state == State.OPEN:
            used = max(self._used, INITIAL_WINDOW)
            if used < recovery.cwnd:
                recovery.ssthresh = recovery.current_ssthresh()
                recovery.cwnd = (recovery.cwnd + used) >> 1
            self._used = 0
        self._checked_at = self._clock.now

    @property
    def _is_limited_by_window(self) -> bool:
        if self._window_was_full:
            return True
        recovery = self.recovery
        return recovery.cwnd < recovery.ssthresh and recovery.cwnd < 2 * self._most_out

    # Acknowledgments

    def acknowledged(self, packet: TcpPacket) -> None:
        """Take the acknowledgment that `packet` carries (tcp_ack)."""
        recovery, board, now = self.recovery, self.board, self._clock.now
        if packet.ack > recovery.nxt or (packet.ack <= recovery.una and not packet.sacks and not board.segments):
            return
        news = AckNews(packet.echo_ms, recovery.una, packet.end > packet.seq)
        losses = board.losses
        prior_edge = board.highest_sacked or recovery.una
        if packet.ack > recovery.una:
            news.advanced = True
            recovery.num_timeouts = 0
            self._first_timeout_at = None
            recovery.una = packet.ack
        if packet.sacks:
            self._take_sacks(packet, news)
        if news.advanced:
            board.acknowledge(packet.ack, recovery.high, prior_edge, news, now)
        self._measure(news)
        board.adapt_window()
        if recovery.probe_ends is not None:
            self._check_probe(packet.ack, news)
        resend = Resend.NOTHING
        if recovery.state != State.OPEN or news.sacked or news.dsacked or not (news.acked or news.has_data):
            resend = recovery.react(news, self._detect_losses)
        if news.sets_timer:
            self._set_timer()
        if recovery.state == State.RECOVERY:
            recovery.reduce(news.delivered, board.losses - losses, advanced=news.advanced)
        elif recovery.may_grow(news) and self._is_limited_by_window:
            recovery.congestion.grow(recovery, news.delivered, now)
        if resend == Resend.NEW:
            self.push()
            if recovery.nxt <= recovery.high:
                recovery.frto = False  # there was nothing new to send: the timeout counts as real
                resend = Resend.LOST
        if resend == Resend.LOST:
            self._resend_lost()

    def _take_sacks(self, packet: TcpPacket, news: AckNews) -> None:
        recovery, blocks = self.recovery, packet.sacks
        first = blocks[0]
        inside_next = len(blocks) > 1 and blocks[1][0] <= first[0] and first[1] <= blocks[1][1]
        if first[0] < packet.ack or inside_next:
            recovery.take_duplicate(first, news)
            blocks = blocks[1:]
        if blocks:
            self.board.take_sacks(blocks, recovery.una, recovery.high, news, self._clock.now)

    def _measure(self, news: AckNews) -> None:
        """Update round trip and timeout (tcp_ack_update_rtt)."""
        recovery, now = self.recovery, self._clock.now
        rtt_s = last_s = -1.0
        if news.sent_at and not news.acked_again:
            rtt_s, last_s = now - news.sent_at[0], now - news.sent_at[-1]
        if news.sacked_sent_at:
            sacked_s = now - news.sacked_sent_at[0]
            last_s = now - news.sacked_sent_at[-1]
            rtt_s = sacked_s if rtt_s < 0 else rtt_s
            segments = self.board.segments
            # Not from data sent after the first segment: the timeout would move on for ever.
            news.sets_timer = bool(segments) and sacked_s > now - segments[0].sent_at
        if rtt_s < 0 and news.acked and news.echo_ms:
            rtt_s = last_s = max(0.001, (int(now * 1000) - news.echo_ms) / 1000)
        news.sets_timer |= news.acked
        if rtt_s < 0:
            return
        self.rtt.min_s = min(self.rtt.min_s, last_s)
        self.rtt.sample(rtt_s, recovery.una, recovery.nxt)
        recovery.congestion.measured(recovery, last_s, now)

    def measured_in_handshake(self, rtt_s: float) -> None:
        """Take the round trip of the handshake."""
        self.rtt.min_s = min(self.rtt.min_s, rtt_s)
        self.rtt.sample(rtt_s, 0, 0)

    def _detect_losses(self, news: AckNews | None = None) -> None:
        """Ask RACK what is lost (tcp_rack_mark_lost)."""
        board = self.board
        if not board.rack_advanced:
            return
        board.rack_advanced = False
        resent = board.sent_again
        wait_s = board.detect_losses(self._clock.now, recovering=self.recovery.state >= State.RECOVERY)
        if wait_s:
            self._arm(Pending.REORDERING, wait_s + SLACK_S)
        if news is not None:
            news.sets_timer &= not wait_s
            news.retransmission_lost |= board.sent_again < resent

    def _check_probe(self, ack: int, news: AckNews) -> None:
        """Tell what the tail loss probe was for (tcp_process_tlp_ack)."""
        recovery = self.recovery
        assert recovery.probe_ends is not None
        if ack < recovery.probe_ends:
            return
        if recovery.probe_was_new or news.dsacked_probe:
            recovery.probe_ends = None
        elif ack > recovery.probe_ends:
            recovery.lose_tail()
        elif not (news.advanced or news.has_data or news.acked or news.sacked):
            recovery.probe_ends = None

    # Timers

    def _arm(self, what: Pending, delay_s: float = 0.0) -> None:
        self._pending = what
        if what == Pending.NOTHING:
            self._timer.cancel()
        else:
            self._timer.set(delay_s)

    def _set_timer(self) -> None:
        if not self._schedule_probe(advancing=True):
            self._rearm()

    def _rearm(self) -> None:
        """Set the timer for the retransmission timeout (tcp_rearm_rto)."""
        if not self.board.segments or not self._is_open:
            self._arm(Pending.NOTHING)
            return
        rto_s = self.rtt.rto_s
        if self._pending in (Pending.REORDERING, Pending.PROBE):
            rto_s = max(1e-6, self._until_timeout_s)
        self._arm(Pending.TIMEOUT, rto_s)

    @property
    def _until_timeout_s(self) -> float:
        return self.board.segments[0].sent_at + self.rtt.rto_s - self._clock.now

    def _schedule_probe(self, *, advancing: bool) -> bool:
        """Plan a tail loss probe after two round trips, unless losses are under repair (tcp_schedule_loss_probe)."""
        segments = self.board.segments
        if not segments or self.recovery.state != State.OPEN or not self._is_open:
            return False
        delay_s = 1.0
        if self.rtt.srtt_s:
            # A lone packet may have a delayed acknowledgment.
            delay_s = 2 * self.rtt.srtt_s + (MIN_RTO_S if len(segments) == 1 else SLACK_S)
        timeout_s = self.rtt.rto_s if advancing else self._until_timeout_s
        if timeout_s > 0:
            delay_s = min(delay_s, timeout_s)
        self._arm(Pending.PROBE, delay_s)
        return True

    def _fired(self) -> None:
        pending, self._pending = self._pending, Pending.NOTHING
        if not self.board.segments:
            return
        match pending:
            case Pending.REORDERING:
                self._pending = pending
                self._waited_for_reordering()
            case Pending.PROBE:
                self._pending = pending
                self._probe()
            case _:
                self._timed_out()

    def _waited_for_reordering(self) -> None:
        """Take that packets were overtaken for too long (tcp_rack_reo_timeout)."""
        board, recovery = self.board, self.recovery
        in_flight, losses = board.in_flight, board.losses
        board.detect_losses(self._clock.now, recovering=recovery.state >= State.RECOVERY)
        if board.in_flight != in_flight:
            if recovery.state != State.RECOVERY:
                recovery.enter_recovery()
                recovery.reduce(1, board.losses - losses, advanced=False)
            self._resend_lost()
        if self._pending != Pending.TIMEOUT:
            self._rearm()

    def _probe(self) -> None:
        """Send new data or the last segment again, so that an answer shows what was lost (tcp_send_loss_probe)."""
        recovery = self.recovery
        if recovery.probe_ends is None:
            recovery.probe_was_new = recovery.nxt < self._written
            if recovery.probe_was_new:
                self._send_next()
            else:
                last = self.board.segments[-1]
                self.board.resent(last, self._clock.now)
                self._transmit(last)
            recovery.probe_ends = recovery.nxt
            # The timeout counts from the probe.
            self._pending = Pending.NOTHING
        self._rearm()

    def _timed_out(self) -> None:
        """Count everything as lost and send the first segment again (tcp_retransmit_timer)."""
        recovery, now = self.recovery, self._clock.now
        if self._first_timeout_at is None:
            self._first_timeout_at = now
        elif now - self._first_timeout_at >= GIVE_UP_S:
            self.stop()
            self._gave_up()
            return
        recovery.enter_loss(now)
        recovery.num_timeouts += 1
        self._resend(self.board.segments[0])
        self.rtt.back_off()
        self._arm(Pending.TIMEOUT, self.rtt.rto_s)
