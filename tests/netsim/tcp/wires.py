"""A connection over two wires of constant delay, on which a test decides what gets lost or late."""

from outrider_netsim.tcp.endpoint import TcpEndpoint, TcpUser
from outrider_netsim.virtual.clock import VirtualClock


class Log(TcpUser):
    """Keeps what an endpoint tells, with its times."""

    def __init__(self, clock):
        self.clock = clock
        self.bytes = 0
        self.arrivals = []
        self.opened_at = self.ended_at = self.error = None

    def opened(self):
        self.opened_at = self.clock.now

    def received(self, size_bytes):
        self.bytes += size_bytes
        self.arrivals.append((self.clock.now, self.bytes))

    def ended(self):
        self.ended_at = self.clock.now

    def failed(self, error):
        self.error = error

    def time_of(self, byte):
        """When so many bytes were there."""
        return next(when for when, count in self.arrivals if count >= byte)


class Wires:
    """Both ends, `delay_s` apart. `fate(n)` of the n-th data packet from here: None loses it, else an extra delay."""

    def __init__(self, *, delay_s=0.05, fate=lambda n: 0.0, congestion="cubic", is_open=True):
        self.clock = VirtualClock()
        self.delay_s = delay_s
        self.fate = fate
        self.sent = []  # (time, size) of every packet with data from here
        self.acks = []  # time of every packet from there
        self.is_cut = False
        self.here, self.there = Log(self.clock), Log(self.clock)
        self.a = TcpEndpoint(self.clock, self._from_here, self.here, congestion, is_open=is_open)
        self.b = TcpEndpoint(self.clock, self._from_there, self.there, congestion, is_open=is_open)
        self.a.connect_to(self.b)

    @property
    def sender(self):
        return self.a.sender

    @property
    def window(self):
        return self.a.sender.recovery

    def run(self, seconds):
        self.clock.run_until(self.clock.now + seconds)

    def ask(self, times, gap_s=1.0):
        """Write a small segment now and then, to give the sender a round trip."""
        for _ in range(times):
            self.a.write(100)
            self.run(gap_s)

    def _from_here(self, size_bytes, arrived):
        extra = 0.0
        if size_bytes > 66 and size_bytes != 74:
            self.sent.append((self.clock.now, size_bytes))
            extra = self.fate(len(self.sent) - 1)
        if not self.is_cut and extra is not None:
            self.clock.call_at(self.clock.now + self.delay_s + extra, arrived)

    def _from_there(self, size_bytes, arrived):
        self.acks.append(self.clock.now)
        if not self.is_cut:
            self.clock.call_at(self.clock.now + self.delay_s, arrived)
