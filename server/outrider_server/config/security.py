"""The configuration of TLS, keys and limits by address: one frozen value, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from outrider_proto.errors import UsageError
from outrider_proto.options.fields import Flag

_DAY_S = 86_400.0  # gRPC counts milliseconds in 32 bits: a longer time would overflow


def at_least(config: object, bound: float, *names: str) -> None:
    """Raise UsageError where a field is less than `bound`, or no number; None is none of its business."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= bound:
            raise UsageError(f"{name}={value}: need at least {bound:g}")


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """PEM files and the key file; None for none. Raises UsageError.

    Limits by address apply to callers without a valid key; behind a proxy all clients have the proxy's address.
    """

    tls_cert: Annotated[Path | None, Flag("PEM file with this server's certificate and its chain.")] = None
    tls_key: Annotated[Path | None, Flag("PEM file with the certificate's private key.")] = None
    client_ca: Annotated[Path | None, Flag("PEM file of an authority: clients need a certificate signed by it.")] = None
    keys: Annotated[Path | None, Flag("File of keys (`outrider-server keys add`): clients need one of them.")] = None
    open_to_network: Annotated[
        bool, Flag("Allow listening beyond loopback without TLS or without keys: anyone on the network can connect.")
    ] = False
    failures_per_minute: Annotated[int, Flag("Wrong keys that one address may try per minute.", expert=True)] = 20
    streams_per_minute: Annotated[
        int, Flag("Streams that one address may begin per minute without a key; loopback has no limit.", expert=True)
    ] = 600
    unopened_streams: Annotated[int, Flag("Streams of one address that have not sent Open yet.", expert=True)] = 128
    handshake_s: Annotated[
        float, Flag("Seconds a new connection has to complete TLS and HTTP/2 setup.", expert=True)
    ] = 10.0
    longest_wait_s: Annotated[
        float, Flag("Seconds a request over its key's rate may be delayed; beyond that it is refused.", expert=True)
    ] = 30.0

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("tls_cert and tls_key go together: give both or neither")
        if self.client_ca is not None and self.tls_cert is None:
            raise UsageError("client_ca needs TLS: give tls_cert and tls_key too")
        at_least(self, 1, "failures_per_minute", "streams_per_minute", "unopened_streams")
        at_least(self, 0, "longest_wait_s")
        if not 0 < self.handshake_s <= _DAY_S:
            raise UsageError(f"handshake_s={self.handshake_s}: need more than 0 seconds, and no more than a day")

    @property
    def authenticates_clients(self) -> bool:
        """True if clients need a key or a certificate."""
        return self.keys is not None or self.client_ca is not None
