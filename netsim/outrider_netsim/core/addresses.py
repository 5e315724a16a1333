"""Parse and print HOST:PORT addresses; IPv6 hosts stand in brackets."""

from __future__ import annotations

from typing import NamedTuple

from outrider_netsim.core.errors import ProfileError

MAX_PORT = 65535
ADDRESS_VARIABLE = "OUTRIDER_LINK_ADDRESS"  # tells a command behind a link where to connect
CLIENT_VARIABLE = "OUTRIDER_CLIENT"  # tells copies of a command apart: 0, 1, ...


class Address(NamedTuple):
    """Host and port of a TCP socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


FREE_PORT = Address("127.0.0.1", 0)  # to listen at: the system picks the port


def parse_address(name: str, text: str) -> Address:
    """Parse HOST:PORT. Raises ProfileError that calls the value by `name`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        raise ProfileError(f"{name} {text!r}: need HOST:PORT, such as 127.0.0.1:50051")
    return Address(host.strip("[]"), int(port))


def check_port(name: str, port: int, least: int = 1) -> None:
    """Raise ProfileError unless `port` is between `least` and 65535."""
    if not least <= port <= MAX_PORT:
        raise ProfileError(f"{name}={port}: need {least} to {MAX_PORT}")
