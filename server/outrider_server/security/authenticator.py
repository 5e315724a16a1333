"""Authentication: turns what a call came with into a Principal or a Refusal; limits by address for callers without a
valid key.

Knows no transport. One instance for all services of a server, on its event loop; the clock is an argument.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from outrider_proto.errors import Reason, Refusal
from outrider_proto.terminal.log_limit import BY_STRANGERS
from outrider_server.config.config import SecurityConfig
from outrider_server.security.address import PeerAddress
from outrider_server.security.gcra import Gcra
from outrider_server.security.keys import Keyring, utc_now
from outrider_server.security.principal import ANONYMOUS, Principal, Scope

_log = logging.getLogger(__name__)
_LOOK_S = 0.5  # how often the key file is checked for changes
_BEARER = "bearer "
_MAX_LABEL = 64
_WATCHES = 64  # of one address; a proxy has one for each of its own backends
_MAX_ADDRESSES = 4096  # remembered at most; beyond that the least recently seen is forgotten
_IN_ALL = 8  # times what one address may have

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """A call as the transport describes it. `certificate`: what names the client's, if one is required."""

    metadata: Metadata
    address: PeerAddress
    certificate: str = ""


class AddressRateLimit:
    """Limits what each address may do per minute: a minute's worth at once, then evenly."""

    def __init__(self, limit: int, what: str, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._what = what
        self._clock = clock
        self._known: OrderedDict[str, Gcra] = OrderedDict()

    def count(self, address: PeerAddress) -> None:
        """Count one more. Raises Refusal OVER_QUOTA where that is too many."""
        now = self._clock()
        known = self._known.setdefault(address.name, Gcra(self._limit / 60, max(self._limit - 1, 0.5)))
        if (wait_s := known.wait_s(now)) > 0:
            message = f"too many {self._what} from your address: try again later"
            raise Refusal(Reason.OVER_QUOTA, message, retry_after_s=wait_s)
        self._known.move_to_end(address.name)
        known.charge(1.0, now)
        if len(self._known) > _MAX_ADDRESSES:
            self._known.popitem(last=False)


class StreamsByAddress:
    """Limits streams of one kind that cost no key: `limit` for each address, eight times that in all."""

    def __init__(self, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._count = Counter[str]()

    @contextmanager
    def one_more(self, address: PeerAddress) -> Iterator[Callable[[], None]]:
        """Count a stream until the block ends or the yielded function is called. Raises Refusal."""
        if self._count[address.name] >= self._limit or self._count.total() >= _IN_ALL * self._limit:
            raise Refusal(Reason.SERVER_FULL, f"too many {self._what}: try again")
        self._count[address.name] += 1
        with ExitStack() as until_open:
            until_open.callback(self._drop, address.name)
            yield until_open.close

    def _drop(self, name: str) -> None:
        # Counter subtraction drops addresses at zero: the table does not grow with every address ever seen.
        self._count -= Counter([name])


class Authenticator:
    """Authenticates and limits callers. Raises UsageError for a key file that cannot be used."""

    def __init__(
        self,
        security: SecurityConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = utc_now,
    ) -> None:
        self.security = security or SecurityConfig()
        self._keyring = None if self.security.keys is None else Keyring(self.security.keys, calendar)
        self._failures = AddressRateLimit(self.security.failures_per_minute, "wrong keys", clock)
        self._begun = AddressRateLimit(self.security.streams_per_minute, "streams", clock)
        self.unopened = StreamsByAddress(self.security.unopened_streams, "streams have not sent Open yet")
        self.watches = StreamsByAddress(_WATCHES, "health or reflection streams")

    def admit(self, caller: Caller, scope: Scope) -> Principal:
        """Return the caller's principal.

        Raises Refusal NO_KEY, OUT_OF_SCOPE, or OVER_QUOTA for an address that has tried too often.
        """
        principal = self._principal(caller)
        if not principal.may(scope):
            raise Refusal(Reason.OUT_OF_SCOPE, f"this key does not allow {scope.value}: use one that does")
        return principal

    def admit_stream(self, caller: Caller) -> Principal:
        """Admit a session stream; callers without keys may not begin too many."""
        if self._keyring is None and not caller.address.is_loopback:
            self._begun.count(caller.address)
        return self.admit(caller, Scope.SESSION)

    def admits_reflection(self, caller: Caller) -> bool:
        """Return whether the caller may list services: from this machine, or with a key."""
        if caller.address.is_loopback:
            return True
        try:
            self.admit(caller, Scope.DESCRIBE)
        except Refusal:
            return False
        return self._keyring is not None

    def count_failure(self, caller: Caller) -> None:
        """Count a call that no honest client makes. Raises Refusal OVER_QUOTA for an address that makes too many."""
        self._failures.count(caller.address)

    def still_admits(self, principal: Principal) -> bool:
        """Return whether the principal's key is still the same and valid."""
        return self._keyring is None or self._keyring.holds(principal.payer, principal.digest)

    async def watch(self, end: Callable[[Callable[[Principal], bool]], None]) -> None:
        """Re-read the key file forever, and end streams whose keys are no longer valid.

        `end` gets a function that tells which principals are still admitted.
        """
        # In a thread: reading a file may block, and this is the loop of all streams. In one of its own: the loop's may
        # all be busy with something else.
        reader, reading = ThreadPoolExecutor(1, "outrider-keys"), None
        with ExitStack() as until_end:
            until_end.callback(reader.shutdown, wait=False)
            while self._keyring is not None:
                await asyncio.sleep(_LOOK_S)
                reading = reading or asyncio.get_running_loop().run_in_executor(reader, self._keyring.refresh)
                # Not for ever: keys expire while a disk hangs, too.
                await asyncio.wait([reading], timeout=_LOOK_S)
                try:
                    end(self.still_admits)
                    if reading.done():
                        ended, reading = reading, None
                        ended.result()
                except Exception as error:  # it must go on: nothing else revokes keys
                    _log.error("revoked keys could not be looked for; trying again", exc_info=error)

    def _principal(self, caller: Caller) -> Principal:
        if self._keyring is None:
            if caller.certificate:
                return Principal(f"cert:{_label(caller.certificate)}")
            return ANONYMOUS if caller.address.is_loopback else Principal(address=caller.address.name)
        # find() takes the same time for a wrong key as for an unknown id. Count the failure only after it.
        key = None if (presented := _bearer(caller.metadata)) is None else self._keyring.find(presented)
        if key is not None:
            return Principal(key.id, key.scopes, key.quota, key.digest)
        self._failures.count(caller.address)
        _log.info("no valid key from %s", caller.address.name, extra={BY_STRANGERS: True})
        if presented is None:
            raise Refusal(Reason.NO_KEY, "this server needs a key: give --key-file")
        raise Refusal(Reason.NO_KEY, "this server does not know this key: it may have been revoked, or have expired")


def _bearer(metadata: Metadata) -> str | None:
    for name, value in metadata:
        if name.lower() == "authorization" and isinstance(value, str) and value.lower().startswith(_BEARER):
            return value[len(_BEARER) :].strip()
    return None


def _label(name: str) -> str:
    """Return a name fit for logs and metrics, different for different names."""
    if len(name) <= _MAX_LABEL and name.isprintable():
        return name
    # A hash, not the first characters: two long names with one beginning would share an account.
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
