"""HOST:PORT as people write it, and as programs read it; IPv6 hosts stand in brackets."""

from __future__ import annotations

from typing import NamedTuple

from outrider_netsim.core.errors import ProfileError

MAX_PORT = 65535
ADDRESS_VARIABLE = "OUTRIDER_LINK_ADDRESS"  # tells a command behind a link where to connect


class Address(NamedTuple):
    """Where a TCP socket listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


FREE_PORT = Address("127.0.0.1", 0)  # to listen at: the system picks the port


def parse_address(name: str, text: str) -> Address:
    """Raises ProfileError that calls the value by `name`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        raise ProfileError(f"{name} {text!r}: need HOST:PORT, such as 127.0.0.1:50051")
    return Address(host.strip("[]"), int(port))


def check_port(name: str, port: int, least: int = 1) -> None:
    """Raises ProfileError when `port` cannot be one."""
    if not least <= port <= MAX_PORT:
        raise ProfileError(f"{name}={port}: need {least} to {MAX_PORT}")
