"""What a verifier holds at one moment: counted when somebody asks, not kept."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Census:
    """Sessions with a stream and without one; bytes of K/V and features in use, and how many there may be (None: as
    many as the machine has). Since the start: sessions evicted for want of room, and context tokens looked for and
    found among the prefixes that are stored once."""

    active: int
    parked: int
    kv_bytes: int = 0
    kv_limit_bytes: int | None = None
    evictions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
