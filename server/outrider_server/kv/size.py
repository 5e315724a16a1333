"""Memory sizes and layouts as people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from outrider_proto.errors import UsageError

KVLayout = Literal["auto", "paged", "contiguous"]
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class MemorySize:
    """A number of bytes, or a share of what is free."""

    num_bytes: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        return f"{100 * self.share:.3g}%" if self.share else show_bytes(self.num_bytes)

    def of(self, free_bytes: int) -> int:
        return int(free_bytes * self.share) if self.share else self.num_bytes

    @classmethod
    def parse(cls, text: str, option: str = "kv_memory") -> MemorySize:
        """Parse 2GiB, 512M, 1073741824 or 25%. Raises UsageError, which names the `option`."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(%|[KMGT]?(?:iB|B)?)", text.strip(), re.ASCII)
        number = float(match[1]) if match else 0.0
        if match and match[2] == "%" and 0 < number <= 100:
            return cls(share=number / 100)
        num_bytes = int(number * _UNITS[match[2][:1].strip("iB")]) if match and match[2] != "%" else 0
        if num_bytes < 1:
            raise UsageError(f"{option}={text}: need a size such as 2GiB or 1073741824, or a share such as 25%")
        return cls(num_bytes)


def show_bytes(num_bytes: int) -> str:
    """Format a size in the largest unit of which it has at least one."""
    size, unit = float(num_bytes), ""
    for bigger in ("K", "M", "G", "T"):
        if size < 1024:
            break
        size, unit = size / 1024, bigger
    return f"{size:.3g} {unit}iB" if unit else f"{num_bytes} B"
