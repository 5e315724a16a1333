"""Messages in one direction over a modeled TCP connection, whole and in order, in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outrider_netsim.core.engine_names import DEFAULT_CONGESTION
from outrider_netsim.tcp.endpoint import UNANSWERED, SendPacket, TcpEndpoint, TcpUser
from outrider_netsim.virtual.clock import VirtualClock


class ExpectedMessages(TcpUser):
    """The messages that a receiver expects: each arrives with its last byte."""

    def __init__(self) -> None:
        self._written = 0
        self._received = 0
        self._expected: deque[tuple[int, Callable[[], None]]] = deque()  # with the byte after the last one

    def expect(self, size_bytes: int, arrived: Callable[[], None]) -> None:
        """Call `arrived` when that many more bytes have arrived."""
        self._written += size_bytes
        self._expected.append((self._written, arrived))

    def received(self, size_bytes: int) -> None:
        self._received += size_bytes
        while self._expected and self._expected[0][0] <= self._received:
            self._expected.popleft()[1]()


class Flow(TcpUser):
    """One direction of a connection that was open before; acknowledgments take the other one.

    Calls `broken` once, when it gives up.
    """

    def __init__(
        self,
        clock: VirtualClock,
        data: SendPacket,
        acks: SendPacket,
        broken: Callable[[], None] = lambda: None,
        congestion: str = DEFAULT_CONGESTION,
    ) -> None:
        self.is_broken = False
        self._clock = clock
        self._broken = broken
        self._messages = ExpectedMessages()
        self._end = TcpEndpoint(clock, data, self, congestion)
        self._end.connect_to(TcpEndpoint(clock, acks, self._messages, congestion))

    def send(self, size_bytes: int, arrived: Callable[[], None]) -> None:
        """Send a message now and call `arrived` when it arrives; an empty one counts as a byte.

        Raises TimeoutError on a broken flow.
        """
        if self.is_broken:
            raise TimeoutError(UNANSWERED)
        self._messages.expect(max(1, size_bytes), arrived)
        self._end.write(max(1, size_bytes))

    def arrival(self, size_bytes: int, now: float) -> float:
        """Run the clock to `now`, send a message, and return the time in seconds at which it arrives.

        Raises TimeoutError when the flow gives up.
        """
        self._clock.run_until(now)
        times: list[float] = []
        self.send(size_bytes, lambda: times.append(self._clock.now))
        while not times:
            if self.is_broken:
                raise TimeoutError(UNANSWERED)
            self._clock.step()
        return times[0]

    def failed(self, error: OSError) -> None:
        self.is_broken = True
        self._broken()
