"""Who is let in: what a call came with goes in, a Principal or a Refusal comes out. Knows no transport; one for all
services of a server, on its event loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from outrider_proto.errors import Reason, Refusal
from outrider_server.config.security import SecurityConfig
from outrider_server.security.address import PeerAddress
from outrider_server.security.address_limits import AddressRateLimit, UnopenedStreams
from outrider_server.security.keys import Keyring, utc_now
from outrider_server.security.principal import ANONYMOUS, Principal, Scope

_log = logging.getLogger(__name__)
_LOOK_S = 1.0  # how often the file of keys is looked at
_BEARER = "bearer "
_MAX_LABEL = 64

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """What the transport says of a call. `certificate`: the name in the client's, where it had to show one."""

    metadata: Metadata
    address: PeerAddress
    certificate: str = ""


class Authenticator:
    """Raises UsageError for a file of keys that cannot be used."""

    def __init__(
        self,
        security: SecurityConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = utc_now,
    ) -> None:
        self.security = security or SecurityConfig()
        self._keyring = None if self.security.keys is None else Keyring(self.security.keys, calendar)
        self._failures = AddressRateLimit(self.security.failures_per_minute, clock)
        self._begun = AddressRateLimit(self.security.streams_per_minute, clock)
        self._unopened = UnopenedStreams(self.security.unopened_streams)

    def admit(self, caller: Caller, scope: Scope) -> Principal:
        """Raises Refusal NO_KEY, OUT_OF_SCOPE, or OVER_QUOTA for an address that has tried too often."""
        principal = self._principal(caller)
        if not principal.may(scope):
            raise Refusal(Reason.OUT_OF_SCOPE, f"this key is not good for {scope.value}: ask for one that is")
        return principal

    def admit_stream(self, caller: Caller) -> Principal:
        """As `admit`, for sessions; strangers may not begin too many."""
        if self._keyring is None and not caller.address.is_loopback:
            _check(self._begun, caller.address, "streams from your address")
            self._begun.count(caller.address)
        return self.admit(caller, Scope.SESSION)

    def waits_for_open(self, caller: Caller) -> AbstractContextManager[Callable[[], None]]:
        """Around a stream until it has said Open, which is to be called then. Raises Refusal on entry."""
        return self._unopened.one_more(caller.address)

    def admits_reflection(self, caller: Caller) -> bool:
        """Whether the caller may list services: this machine's own, and whoever has a key."""
        if caller.address.is_loopback:
            return True
        try:
            self.admit(caller, Scope.DESCRIBE)
        except Refusal:
            return False
        return self._keyring is not None

    def still_admits(self, principal: Principal) -> bool:
        """Whether the key has been neither revoked nor replaced, and has not expired, since it was let in."""
        return self._keyring is None or self._keyring.holds(principal.payer, principal.digest)

    async def watch(self, end: Callable[[Callable[[Principal], bool]], None]) -> None:
        """For ever: see to it that keys are good no longer than their file says. `end` ends all streams of principals
        that the function it is given does not admit any more."""
        while self._keyring is not None:
            await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self._keyring.refresh)
            end(self.still_admits)

    def _principal(self, caller: Caller) -> Principal:
        if self._keyring is None:
            return Principal(f"cert:{_label(caller.certificate)}") if caller.certificate else ANONYMOUS
        key = None if (presented := _bearer(caller.metadata)) is None else self._keyring.find(presented)
        if key is not None:
            return Principal(key.id, key.scopes, key.quota, key.digest)
        _check(self._failures, caller.address, "wrong keys from your address")
        self._failures.count(caller.address)
        _log.info("no valid key from %s", caller.address.name)
        if presented is None:
            raise Refusal(Reason.NO_KEY, "this server needs a key: give --key-file")
        raise Refusal(Reason.NO_KEY, "this server does not know this key: it may have been revoked, or have expired")


def _bearer(metadata: Metadata) -> str | None:
    for name, value in metadata:
        if name.lower() == "authorization" and isinstance(value, str) and value.lower().startswith(_BEARER):
            return value[len(_BEARER) :].strip()
    return None


def _label(name: str) -> str:
    """Fit for logs and metrics, and another for another name."""
    if len(name) <= _MAX_LABEL and name.isprintable():
        return name
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()


def _check(limit: AddressRateLimit, address: PeerAddress, what: str) -> None:
    wait_s = limit.wait_s(address)
    if wait_s > 0:
        raise Refusal(Reason.OVER_QUOTA, f"too many {what}: try again later", retry_after_s=wait_s)
