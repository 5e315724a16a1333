"""Names of engines and directions, and defaults of the command line. Imports nothing, so that --help is quick."""

from __future__ import annotations

from typing import Literal

Way = Literal["up", "down"]
WAYS: tuple[Way, ...] = ("up", "down")
EngineName = Literal["kernel", "tun", "proxy"]
EngineChoice = Literal["auto", "kernel", "tun", "proxy"]
ProbeEngine = Literal["auto", "kernel", "tun", "virtual"]  # proxy carries streams, not packets
BEST_FIRST: tuple[EngineName, ...] = ("kernel", "tun", "proxy")
WITH_NETWORK: tuple[EngineName, ...] = ("kernel", "tun")  # these put any command behind the link

# Linux's default; kernel and tun may know more than the two that are modeled, such as bbr.
DEFAULT_CONGESTION = "cubic"
MODELED_CONGESTION = ("cubic", "reno")

DEFAULT_UPSTREAM = "127.0.0.1:50051"
PLACEHOLDER = "{link}"  # in a command: replaced by the address that leads through the link
DEFAULT_PROBE_PACKETS = 2_000
