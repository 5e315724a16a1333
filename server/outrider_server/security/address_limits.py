"""Limits by address for callers without a valid key. For the event loop; the clock is an argument."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outrider_proto.errors import Reason, Refusal
from outrider_server.security.address import PeerAddress
from outrider_server.security.gcra import Gcra

_MAX_ADDRESSES = 4096  # remembered at most; beyond that the least recently seen is forgotten
_UNOPENED_IN_ALL = 8  # times what one address may have


class AddressRateLimit:
    """Limits what each address may do per minute: a minute's worth at once, then evenly."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._known: OrderedDict[str, Gcra] = OrderedDict()

    def wait_s(self, address: PeerAddress) -> float:
        known = self._known.get(address.name)
        return 0.0 if known is None else known.wait_s(self._clock())

    def count(self, address: PeerAddress) -> None:
        known = self._known.setdefault(address.name, Gcra(self._limit / 60, max(self._limit - 1, 0.5)))
        self._known.move_to_end(address.name)
        known.charge(1.0, self._clock())
        if len(self._known) > _MAX_ADDRESSES:
            self._known.popitem(last=False)


class UnopenedStreams:
    """Limits streams that have not sent Open yet: `limit` for each address, eight times that in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = Counter[str]()

    @contextmanager
    def one_more(self, address: PeerAddress) -> Iterator[Callable[[], None]]:
        """Count a stream until the block ends or the yielded function is called. Raises Refusal."""
        if self._count[address.name] >= self._limit or self._count.total() >= _UNOPENED_IN_ALL * self._limit:
            raise Refusal(Reason.SERVER_FULL, "too many streams have not sent Open yet: try again")
        self._count[address.name] += 1
        has_opened = False

        def opened() -> None:
            nonlocal has_opened
            if not has_opened:
                has_opened = True
                # Counter subtraction drops addresses at zero: the table does not grow with every address ever seen.
                self._count -= Counter([address.name])

        try:
            yield opened
        finally:
            opened()
