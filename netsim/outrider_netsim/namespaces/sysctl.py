"""Network settings of the namespace that this process is in. The namespace holder runs this on either side."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from outrider_netsim.core.errors import EngineError, ProfileError

SETTINGS = Path("/proc/sys")
AVAILABLE_CONGESTION = "net/ipv4/tcp_available_congestion_control"

# What would differ between hosts, or between the connections of one run, if it stayed as it is. All other settings of
# TCP are the kernel's defaults in a new namespace, whatever the host has (net/ipv4/tcp_ipv4.c, tcp_sk_init).
TCP_SETTINGS = {
    # Otherwise a connection starts from the slow start threshold and the reordering that the one before it cached for
    # the address: the first answer of a run and the second would meet different links.
    "tcp_no_metrics_save": "1",
    # A new namespace copies these two from the host. Linux's own defaults, from 1 GB of memory on.
    "tcp_rmem": "4096 131072 6291456",
    "tcp_wmem": "4096 16384 4194304",
}


def set_up_tcp(congestion: str) -> None:
    """Give this namespace's TCP the same settings on every host. Raises EngineError without that congestion control."""
    with socket.socket() as trial:
        choose_congestion(trial, congestion)
    for name, value in {**TCP_SETTINGS, "tcp_congestion_control": congestion}.items():
        # Read-only in some containers. And a namespace takes no congestion control that the host keeps for root (it is
        # not in tcp_allowed_congestion_control): the splices' sockets choose it one by one.
        with contextlib.suppress(OSError):
            (SETTINGS / "net/ipv4" / name).write_text(value)


def choose_congestion(connection: socket.socket, congestion: str) -> None:
    """Set the congestion control of a TCP socket, or of a listener's connections. Raises EngineError."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    except OSError as error:
        available = ", ".join(SETTINGS.joinpath(AVAILABLE_CONGESTION).read_text().split())
        raise EngineError(
            f"congestion {congestion!r}: the kernel has {available} ({error.strerror}): choose one of these, or load "
            f"its module (modprobe tcp_{congestion})"
        ) from None


def set_sysctl(name: str, value: str) -> None:
    """Set `net.ipv4.tcp_...` for this namespace alone. Raises ProfileError for what this kernel rejects."""
    words = name.split(".")
    if words[0] != "net" or not all(words) or "/" in name:
        raise ProfileError(f"sysctl {name!r}: need a name such as net.ipv4.tcp_slow_start_after_idle")
    file = SETTINGS.joinpath(*words)
    if not file.is_file():
        raise ProfileError(f"sysctl {name}: a namespace of this kernel has none of that name")
    try:
        file.write_text(value)
    except OSError as error:
        raise ProfileError(f"sysctl {name}={value}: refused by the kernel ({error.strerror})") from None
