"""One end of a modeled TCP connection: handshake, acknowledgments in both directions, end of stream and reset.

    a, b = TcpEndpoint(clock, up.send, user_a), TcpEndpoint(clock, down.send, user_b)
    a.connect_to(b)             # then a.open() for a handshake, or both are open from the start
    a.write(150_000)            # and user_b.received(n) is called as bytes arrive in order

No content passes through: whoever writes keeps the bytes, and hands over as many as `received` says.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import partial
from typing import Self

from outrider_netsim.core.engine_names import DEFAULT_CONGESTION
from outrider_netsim.tcp.packet import SEGMENT_BYTES, SentSegment, TcpPacket
from outrider_netsim.tcp.receiver import ReceivedStream
from outrider_netsim.tcp.recovery import INITIAL_WINDOW
from outrider_netsim.tcp.rtt import FIRST_RTO_S
from outrider_netsim.tcp.sender import Sender
from outrider_netsim.tcp.timer import Clock, Timer

SYN_RETRIES = 10  # as Linux sends them: tcp_syn_retries of 6 after
LINEAR_SYN_RETRIES = 4  # that are a second apart (tcp_syn_linear_timeouts)
PAWS_WINDOW_MS = 1
UNANSWERED = "no answer over the link for too long: restore it and connect again"

SendPacket = Callable[[int, Callable[[], None]], None]  # (size in bytes, callback on arrival)


class TcpUser:
    """Is told what happens to an endpoint. Does nothing itself."""

    def opened(self) -> None:
        """The handshake is done."""

    def received(self, size_bytes: int) -> None:
        """That many more bytes have arrived in order."""

    def acknowledged(self) -> None:
        """There may be room to write more."""

    def ended(self) -> None:
        """The other end's last byte has arrived."""

    def failed(self, error: OSError) -> None:
        """The connection was reset (ConnectionResetError) or not answered (TimeoutError)."""


class Phase(enum.Enum):
    """A connection's states, as far as they differ here."""

    LISTENING = 0
    OPENING = 1  # SYN sent
    ANSWERING = 2  # SYN received and answered
    OPEN = 3
    DEAD = 4  # reset: answers with RST


class TcpEndpoint:
    """One end. `send` puts packets on the link towards the other end."""

    def __init__(
        self,
        clock: Clock,
        send: SendPacket,
        user: TcpUser,
        congestion: str = DEFAULT_CONGESTION,
        *,
        is_open: bool = True,
    ) -> None:
        self.user = user
        self.sender = Sender(clock, congestion, self._send_segment, self._give_up)
        self.stream = ReceivedStream(clock, self.sender.rtt, self._send_ack)
        self._clock = clock
        self._send = send
        self._phase = Phase.OPEN if is_open else Phase.LISTENING
        self._peer: TcpEndpoint | None = None
        self._recent_ms = 0  # RFC 7323's TS.Recent
        self._syn_timer = Timer(clock, self._syn_timed_out)
        self._syn_retries = 0
        self._num_syns = 0
        self._syn_sent_at = 0.0

    def connect_to(self, peer: Self) -> None:
        """Wire two ends to each other."""
        self._peer, peer._peer = peer, self

    def open(self) -> None:
        """Begin the handshake."""
        self._phase = Phase.OPENING
        self._send_syn()

    @property
    def room_bytes(self) -> int:
        """How much a program could write before it is held back: two windows of bytes that are not acknowledged."""
        window = max(self.sender.recovery.cwnd, INITIAL_WINDOW)
        return 2 * window * SEGMENT_BYTES - self.sender.pending_bytes

    def write(self, size_bytes: int) -> None:
        """Send that many bytes."""
        self.sender.write(size_bytes)
        self._push()

    def finish(self) -> None:
        """End the stream after everything written."""
        self.sender.finish()
        self._push()

    def reset(self) -> None:
        """Drop everything and tell the other end, which asks again if that message gets lost."""
        if self._phase != Phase.DEAD:
            if self._phase != Phase.LISTENING:
                self._send_reset(self.sender.recovery.nxt)
            self._die()

    def _push(self) -> None:
        if self._phase == Phase.OPEN:
            self.sender.push()

    # Packets out

    def _packet(self, seq: int, end: int, **flags: bool) -> TcpPacket:
        now_ms = int(self._clock.now * 1000)
        return TcpPacket(seq, end, self.stream.next, self.stream.sacks, now_ms, self._recent_ms, **flags)

    def _transmit(self, packet: TcpPacket) -> None:
        assert self._peer is not None
        self._send(packet.size_bytes, partial(self._peer.arrive, packet))

    def _send_segment(self, segment: SentSegment) -> None:
        packet = self._packet(segment.seq, segment.end, fin=segment.fin)
        self.stream.sent_data()
        self.stream.sent_ack()
        self._transmit(packet)

    def _send_ack(self) -> None:
        packet = self._packet(self.sender.recovery.nxt, self.sender.recovery.nxt)
        self.stream.sent_ack()
        self._transmit(packet)

    def _send_reset(self, seq: int) -> None:
        self._transmit(self._packet(seq, seq, rst=True))

    # The handshake

    def _send_syn(self) -> None:
        self._num_syns += 1
        self._syn_sent_at = self._clock.now
        doublings = max(0, self._syn_retries - LINEAR_SYN_RETRIES)
        self._syn_timer.set(FIRST_RTO_S * 2**doublings)
        self._transmit(self._packet(0, 0, syn=True))

    def _syn_timed_out(self) -> None:
        if self._phase not in (Phase.OPENING, Phase.ANSWERING):
            return
        if self._syn_retries >= SYN_RETRIES:
            self._give_up()
            return
        self._syn_retries += 1
        self._send_syn()

    def _arrive_syn(self, packet: TcpPacket) -> None:
        # Who has answered a SYN goes on to echo the stamp of that one (tcp_check_req).
        if self._phase != Phase.ANSWERING:
            self._recent_ms = max(self._recent_ms, packet.stamp_ms)
        match self._phase:
            case Phase.LISTENING:
                self._phase = Phase.ANSWERING
                self._send_syn()
            case Phase.ANSWERING:
                self._send_syn()
            case Phase.OPENING:
                self._complete_handshake(packet)
                self.sender.push()
                # Unless data carries the acknowledgment.
                if not self.sender.recovery.nxt:
                    self._send_ack()
            case Phase.OPEN:
                self._send_ack()
            case _:
                self._send_reset(0)

    def _complete_handshake(self, packet: TcpPacket) -> None:
        self._syn_timer.cancel()
        self._phase = Phase.OPEN
        if self._syn_retries > 1:
            self.sender.recovery.cwnd = 1
        took_s = self._clock.now - self._syn_sent_at
        if self._num_syns > 1:
            # Of several SYNs only the echoed stamp, in whole milliseconds, tells which one was answered.
            took_s = max(0.001, self._clock.now - packet.echo_ms / 1000)
        self.sender.measured_in_handshake(took_s)
        self.user.opened()

    # Packets in

    def arrive(self, packet: TcpPacket) -> None:
        """Take a packet from the link."""
        if self._phase == Phase.DEAD:
            if not packet.rst:
                self._send_reset(packet.ack)
            return
        if packet.syn:
            self._arrive_syn(packet)
            return
        if packet.rst:
            self._arrive_reset(packet)
            return
        if self._phase == Phase.ANSWERING:
            self._complete_handshake(packet)
        if self._phase == Phase.OPEN and self._is_recent(packet):
            self._take(packet)

    def _is_recent(self, packet: TcpPacket) -> bool:
        """Refuse what came before, also by its timestamp (tcp_validate_incoming; PAWS, RFC 7323, section 5)."""
        is_late = packet.stamp_ms < self._recent_ms - PAWS_WINDOW_MS
        if packet.end < self.stream.acked or is_late:
            if packet.end > packet.seq:
                if packet.seq < self.stream.next:
                    self.stream.report_duplicate(packet.seq, packet.end)
                self._send_ack()
                return False
            return packet.end >= self.stream.acked and packet.ack == self.sender.recovery.una
        if packet.stamp_ms < self._recent_ms:
            return True
        if packet.seq <= self.stream.acked:
            self._recent_ms = packet.stamp_ms
        return True

    def _take(self, packet: TcpPacket) -> None:
        sender, stream = self.sender, self.stream
        una = sender.recovery.una
        sender.acknowledged(packet)
        arrived = 0
        was_complete = stream.is_complete
        if packet.end > packet.seq:
            arrived = stream.take(packet)
            sender.push()
            # Data that went out just now has carried the acknowledgment.
            if stream.acked < stream.next or not arrived:
                stream.check_ack(is_new=arrived > 0)
        else:
            sender.push()
        is_complete = stream.is_complete
        if arrived := arrived - (is_complete and not was_complete):
            self.user.received(arrived)
        if is_complete and not was_complete:
            self.user.ended()
        if sender.recovery.una > una:
            self.user.acknowledged()

    def _arrive_reset(self, packet: TcpPacket) -> None:
        # Only at the expected place; else the sender is asked to repeat it there (RFC 5961).
        if packet.seq == self.stream.next or self._phase != Phase.OPEN:
            self._die()
            self.user.failed(ConnectionResetError("the other end has reset the connection"))
        else:
            self._send_ack()

    def _give_up(self) -> None:
        self._die()
        self.user.failed(TimeoutError(UNANSWERED))

    def _die(self) -> None:
        self._phase = Phase.DEAD
        self.sender.stop()
        self.stream.stop()
        self._syn_timer.cancel()
