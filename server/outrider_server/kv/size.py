"""Memory sizes as people write them."""

from __future__ import annotations

import re

from outrider_proto.errors import UsageError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(text: str) -> int:
    """Parse 2GiB, 512M or 1073741824. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:iB|B)?", text.strip(), re.ASCII)
    num_bytes = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if num_bytes < 1:
        raise UsageError(f"kv_memory={text}: need a size such as 2GiB, 512MiB or 1073741824")
    return num_bytes


def show_bytes(num_bytes: int) -> str:
    """Format a size in the largest unit of which it has at least one."""
    size, unit = float(num_bytes), ""
    for bigger in ("K", "M", "G", "T"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.3g} {unit}iB" if unit else f"{num_bytes} B"
