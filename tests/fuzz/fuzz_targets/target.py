"""A fuzz target: a decoder, what it may refuse with, what it may allocate, and what must hold of what it made."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider_proto.errors import Refusal

MOST_S = 1.0  # of the processor, for one input
_OBJECT = 64  # bytes that one byte of input may become as Python values
_FIXED = 64 * 1024


class Finding(Exception):
    """What a decoder must not do."""


def by_length(data: bytes) -> int:
    """The bound on allocation where a decoder makes nothing larger than what it is given."""
    return _FIXED + _OBJECT * len(data)


def no_check(value: Any) -> None:
    """For a target whose decoder says all there is to say."""


@dataclass(frozen=True)
class FuzzTarget:
    """`decode` makes a value of bytes or raises one of `refusals`. `check` raises unless the value is sound and
    survives the way back. `bound`: bytes that decoding may allocate at once, as a function of the input; None: not
    watched. `prepare` makes of the input what the decoder takes; it is not measured."""

    name: str
    decode: Callable[[Any], Any]
    seeds: Callable[[], Mapping[str, bytes]]
    check: Callable[[Any], None] = no_check
    refusals: tuple[type[BaseException], ...] = (Refusal,)
    bound: Callable[[bytes], int] | None = by_length
    prepare: Callable[[bytes], Any] = bytes
    max_len: int = 4096

    def __call__(self, data: bytes) -> None:
        """Raises for a finding. The value is checked outside of what is measured."""
        prepared = self.prepare(data)
        value, used, seconds = self._measured(prepared)
        if self._is_too_much(data, used) or seconds > MOST_S:
            value, used, seconds = self._measured(prepared)  # caches are filled now
        if self._is_too_much(data, used):
            raise Finding(f"{self.name}: {used} bytes allocated for {len(data)}: at most {self.bound(data)}")
        if seconds > MOST_S:
            raise Finding(f"{self.name}: {seconds:.1f} s for {len(data)} bytes: at most {MOST_S}")
        if value is not None:
            self.check(value)

    def _measured(self, prepared: Any) -> tuple[Any, int, float]:
        if self.bound is not None and not tracemalloc.is_tracing():
            tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        started = time.thread_time()
        try:
            value = self.decode(prepared)
        except self.refusals:
            value = None
        seconds = time.thread_time() - started
        return value, tracemalloc.get_traced_memory()[1] - before, seconds

    def _is_too_much(self, data: bytes, used: int) -> bool:
        return self.bound is not None and used > self.bound(data)
