"""Network settings of the namespace that this process is in. The namespace holder runs this on either side."""

from __future__ import annotations

from pathlib import Path

from outrider_netsim.core.errors import ProfileError

SETTINGS = Path("/proc/sys")


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
