"""A sender's window, and what it does about losses: Open, Disorder, Recovery and Loss, as in net/ipv4/tcp_input.c.

    Open --sacks--> Disorder --RACK finds a loss--> Recovery (PRR, RFC 6937) --all acknowledged--> Open
      any of them --retransmission timeout--> Loss (slow start; F-RTO, RFC 5682) --all acknowledged--> Open

A reduction is undone when it proves needless: by timestamps (Eifel, RFC 3522), D-SACKs (RFC 3708) or F-RTO.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from outrider_netsim.tcp.congestion import Reno
from outrider_netsim.tcp.packet import AckNews, Range
from outrider_netsim.tcp.scoreboard import DUPLICATE_ACKS, Scoreboard

INITIAL_WINDOW = 10  # packets (RFC 6928)

LossDetection = Callable[[AckNews], None]


class State(enum.IntEnum):
    """Linux's tcp_ca_state, without CWR: ECN is not modeled, and a tail loss ends it where it began."""

    OPEN = 0
    DISORDER = 1
    RECOVERY = 3
    LOSS = 4


class Resend(enum.Enum):
    """What to send after an acknowledgment."""

    NOTHING = 0
    LOST = 1
    NEW = 2


class TcpRecovery:
    """Congestion window, slow start threshold and recovery state of a sender; windows in packets."""

    def __init__(self, board: Scoreboard, congestion: Reno) -> None:
        self.board = board
        self.congestion = congestion
        self.cwnd = INITIAL_WINDOW
        self.cwnd_count = 0
        self.ssthresh = math.inf
        self.una = 0  # the first byte that is not acknowledged
        self.nxt = 0  # the next byte to send
        self.state = State.OPEN
        self.high = 0  # what was sent when the state began: it ends when all that is acknowledged
        self.probe_ends: int | None = None  # what was sent when a tail loss probe was under way
        self.probe_was_new = True
        self.first_resent_ms: int | None = None
        self.num_timeouts = 0  # in a row
        self._prior_ssthresh = 0.0  # before the reduction; 0: nothing to undo
        self._prior_cwnd = 0
        self._undo_from: int | None = None
        self._undo_left = -1  # retransmissions that may prove needless; -1 before any
        self._delivered = self.resent = 0  # since the recovery began
        self.frto = False  # after a timeout that may have been needless

    def current_ssthresh(self) -> float:
        """Return at least 3/4 of the window (tcp_current_ssthresh)."""
        if self.state == State.RECOVERY:
            return self.ssthresh
        return max(self.ssthresh, (self.cwnd >> 1) + (self.cwnd >> 2))

    def may_grow(self, news: AckNews) -> bool:
        """Return whether the window may grow: on any delivery if the path reorders much, else only in order."""
        return news.acked or (news.sacked and self.board.reordering > DUPLICATE_ACKS)

    # Undo

    def note_resent(self, now_ms: int) -> None:
        """Take a retransmission of this recovery."""
        if self.first_resent_ms is None:
            self.first_resent_ms = now_ms
        self._undo_left = max(0, self._undo_left) + 1

    def take_duplicate(self, block: Range, news: AckNews) -> None:
        """Take a D-SACK: when every retransmission has one, none was needed."""
        count = self.board.take_duplicate(block, self.probe_ends, news)
        if not count:
            return
        segment = self.board.by_seq.get(block[0])
        # Not where only the first part of several segments sent as one was there already.
        is_whole = block[1] <= news.prior_una or (segment is not None and segment.end <= block[1])
        if self._undo_from is not None and self._undo_left > 0 and block[1] > self._undo_from and is_whole:
            self._undo_left = max(0, self._undo_left - count)
        if segment is not None and segment.is_sent_again and not segment.is_lost:
            segment.is_sent_again = False
            self.board.sent_again -= 1

    def _was_delayed(self, news: AckNews) -> bool:
        """Return whether the ack answers a packet sent before the first retransmission."""
        return self.first_resent_ms is None or news.echo_ms < self.first_resent_ms

    def _may_undo(self, news: AckNews) -> bool:
        return self._undo_from is not None and (not self._undo_left or self._was_delayed(news))

    def _undo(self, *, unmark: bool) -> None:
        if unmark:
            self.board.unmark_losses()
        if self._prior_ssthresh:
            self.cwnd = max(self.cwnd, self._prior_cwnd)
            self.ssthresh = max(self.ssthresh, self._prior_ssthresh)
        self._undo_from = None
        self.board.rack_advanced = True

    def _undo_by_duplicates(self) -> bool:
        if self._undo_from is None or self._undo_left:
            return False
        self.board.recovered(undone=True)
        self._undo(unmark=False)
        return True

    def _begin_undo(self) -> None:
        self._undo_from = self.una
        self._undo_left = self.board.sent_again + (self.probe_ends is not None and not self.probe_was_new) or -1

    # The states

    def react(self, news: AckNews, detect: LossDetection) -> Resend:
        """Change the state after an acknowledgment (tcp_fastretrans_alert)."""
        if self.state == State.OPEN:
            self.first_resent_ms = None
        elif self.una >= self.high and self.state == State.RECOVERY:
            self._end_or_undo(news)
            self._end_reduction()
        match self.state:
            case State.RECOVERY:
                if news.advanced and self._undo_partly(news):
                    return Resend.NOTHING
                if self._undo_by_duplicates():
                    self._keep_open()
                detect(news)
                if self.state != State.RECOVERY:
                    if not self.board.lost:
                        return Resend.NOTHING
                    self.enter_recovery()
            case State.LOSS:
                resend = self._in_loss(news)
                detect(news)
                if self.state == State.LOSS and not news.retransmission_lost:
                    return resend
                return self._recover_or_open()
            case _:
                self._undo_by_duplicates()
                detect(news)
                return self._recover_or_open()
        return Resend.LOST

    def _recover_or_open(self) -> Resend:
        if self.board.lost:
            self.enter_recovery()
            return Resend.LOST
        self._keep_open()
        return Resend.NOTHING

    def _keep_open(self) -> None:
        self._forget_resent()
        is_disordered = self.board.sacked or self.board.lost or self.board.was_resent
        state = State.DISORDER if is_disordered else State.OPEN
        if state != self.state:
            self.state = state
            self.high = self.nxt

    def _forget_resent(self) -> None:
        if not self.board.was_resent:
            self.first_resent_ms = None

    def _end_or_undo(self, news: AckNews) -> None:
        if self._may_undo(news):
            self._undo(unmark=False)
        else:
            self.board.recovered(undone=False)
        self.state = State.OPEN

    def _undo_partly(self, news: AckNews) -> bool:
        """Undo when a delayed packet closed a gap; True: wait for the retransmissions first (tcp_try_undo_partial)."""
        if self._undo_from is None or not self._was_delayed(news):
            return False
        self.board.note_reordering(news.prior_una, self.una)
        if self.board.sent_again:
            return True
        self._forget_resent()
        self._undo(unmark=True)
        self._keep_open()
        return False

    def enter_recovery(self) -> None:
        """Begin a fast recovery."""
        self._forget_resent()
        self._prior_ssthresh = 0.0
        self._begin_undo()
        if self.state != State.RECOVERY:
            self._prior_ssthresh = self.current_ssthresh()
            self._begin_reduction()
        self.state = State.RECOVERY

    def lose_tail(self) -> None:
        """Shrink the window for a loss that a probe has repaired (tcp_process_tlp_ack)."""
        self._begin_reduction()
        self.cwnd = int(self.ssthresh)
        self._keep_open()

    def _begin_reduction(self) -> None:
        self.high = self.nxt
        self.probe_ends = None
        self.cwnd_count = 0
        self._prior_cwnd = self.cwnd
        self._delivered = self.resent = 0
        self.ssthresh = self.congestion.ssthresh(self)

    def reduce(self, delivered: int, newly_lost: int, *, advanced: bool) -> None:
        """Set the window during a recovery: proportional rate reduction (tcp_cwnd_reduction)."""
        if delivered <= 0:
            return
        self._delivered += delivered
        in_flight = self.board.in_flight
        room = int(self.ssthresh) - in_flight
        if room < 0:
            allowed = -(-int(self.ssthresh) * self._delivered // self._prior_cwnd) - self.resent
        else:
            allowed = max(self._delivered - self.resent, delivered) + (advanced and not newly_lost)
            allowed = min(room, allowed)
        self.cwnd = in_flight + max(allowed, 0 if self.resent else 1)

    def _end_reduction(self) -> None:
        if self._undo_from is not None and self.ssthresh < math.inf:
            self.cwnd = int(self.ssthresh)

    def enter_loss(self, now: float) -> None:
        """Begin anew after a retransmission timeout."""
        new = self.state < State.RECOVERY
        disordered = self.state <= State.DISORDER and self.board.sacked >= DUPLICATE_ACKS
        self.board.time_out(now)
        if (
            self.state <= State.DISORDER
            or self.una >= self.high
            or (self.state == State.LOSS and not self.num_timeouts)
        ):
            self._prior_ssthresh = self.current_ssthresh()
            self._prior_cwnd = self.cwnd
            self.ssthresh = self.congestion.ssthresh(self)
            self._begin_undo()
        self.cwnd = self.board.in_flight + 1
        self.cwnd_count = 0
        if disordered:
            self.board.reordering = min(self.board.reordering, DUPLICATE_ACKS)
        self.congestion.timed_out()
        self.state = State.LOSS
        self.high = self.nxt
        self.probe_ends = None
        self.frto = new or self.num_timeouts > 0

    def _in_loss(self, news: AckNews) -> Resend:
        """Tell a needless timeout from a real one (tcp_process_loss)."""
        if news.advanced and self._undo_loss(news, proven=False):
            return Resend.NOTHING
        recovered = self.una >= self.high
        if self.frto:
            if news.original_arrived and self._undo_loss(news, proven=True):
                return Resend.NOTHING
            if self.nxt > self.high:
                if news.sacked or not (news.advanced or news.has_data or news.dsacked):
                    self.frto = False
            elif news.advanced and not recovered:
                self.high = self.nxt
                return Resend.NEW
        if recovered:
            self._end_or_undo(news)
            return Resend.NOTHING
        return Resend.LOST

    def _undo_loss(self, news: AckNews, *, proven: bool) -> bool:
        if not proven and not self._may_undo(news):
            return False
        self._undo(unmark=True)
        self.num_timeouts = 0
        self.state = State.OPEN
        return True
