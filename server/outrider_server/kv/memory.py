"""The K/V memory of all sessions: what they hold, what they share, and what is evicted when it is full.

Memory is freed in this order: spare buffers; unused prefixes; then the rows of sessions, as eviction.py has it. Rows
and features go, maybe to the host; the tokens stay, and what rows have gone for good are computed again from them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import heapify, heappop, heappush
from typing import Literal

import torch

from outrider_proto.errors import Reason, Refusal
from outrider_server.kv.budget import KVShape, MemoryBudget, OutOfKVMemory
from outrider_server.kv.buffers import BufferPool, KVBuffer
from outrider_server.kv.eviction import EvictionPolicy, Holding
from outrider_server.kv.host_copies import HostCopies
from outrider_server.kv.pages import PagePool
from outrider_server.kv.prefix import BLOCK, group_hash
from outrider_server.kv.prefix_cache import CachedSequence, PrefixCache
from outrider_server.kv.rows import KVRows
from outrider_server.kv.size import KVLayout
from outrider_server.kv.slot import KVSlot, RowPool, Take

Sharing = Literal["payer", "all", "none"]


_SMALL_BYTES = 256 * 1024  # a separate product in every pass costs more than this memory
_DROP_SHARE = 16  # prefixes of one part in so many of all memory go at once: finding them takes time


class KVMemory:
    """The memory of all sequences. For the engine thread only, but for `new_slot` and the counts.

    Sessions give way to others only between passes; rows may become a shared prefix at any time. `small_bytes`: rows
    that are too few to be worth sharing. `layout` auto: paged, but contiguous on a CPU, where gathering pages costs
    more than the attention over them. `swap_bytes`: of the host, for rows of evicted sessions.
    """

    def __init__(
        self,
        shape: KVShape,
        budget_bytes: int | None = None,
        sharing: Sharing = "payer",
        small_bytes: int = _SMALL_BYTES,
        policy: EvictionPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        layout: KVLayout = "auto",
        swap_bytes: int = 0,
    ) -> None:
        self.budget = MemoryBudget(sys.maxsize if budget_bytes is None else budget_bytes)
        self._is_paged = layout == "paged" or (layout == "auto" and shape.device.type != "cpu")
        self.pool: RowPool = PagePool(shape, self.budget) if self._is_paged else BufferPool(shape, self.budget)
        self.evictions = 0
        self.prefix_hits_tokens = 0  # tokens found in the cache
        self.prefix_asked_tokens = 0  # tokens looked up
        self.policy = policy or EvictionPolicy(self.budget.limit_bytes)
        self._clock = clock
        self.prefix_cache = PrefixCache(self.pool, self._take_copy, small_bytes)
        self._sharing = sharing
        self.host = HostCopies(swap_bytes)
        self._sequences: dict[CachedSequence, None] = {}
        self.must_free_all = False  # before the next pass: one has failed for lack of memory
        self._pass_runs = False

    def group(self, payer: str, tap: str) -> bytes:
        """Return the key of the sequences that may share rows: same payer (or all), same tap."""
        return group_hash(b"" if self._sharing == "all" else payer.encode(), tap.encode())

    def new_slot(self, sequence: CachedSequence, width: int) -> KVSlot:
        """Register the sequence, whose rows may be evicted from now on."""
        sequence.slot = KVSlot(self.pool, width)
        # Last: from here on the engine thread may use every field of the sequence.
        self._sequences[sequence] = None
        return sequence.slot

    def take_for(self, sequence: CachedSequence, num_rows: int, width: int) -> KVRows:
        """Return a buffer to grow with. Raises OutOfKVMemory, and lets the sequence wait in line then."""
        now = self._clock()
        sequence.usage.wait(self.pool.wanted_bytes(sequence.slot.buffer, num_rows), now)
        if not sequence.slot.holds_any:
            sequence.usage.placed_at = now
        return self._taken(self.pool.take, num_rows, width, (sequence,), asking=sequence)

    def touch(self, sequence: CachedSequence) -> None:
        """Note that a pass, or the client that they are sent to, has used its rows."""
        sequence.usage.used_at = self._clock()

    def begin(self, sequence: CachedSequence, num_rows: int) -> int:
        """Attach the cached prefix of a sequence that will grow to `num_rows` rows.

        Returns how many of its tokens have rows and features by that.
        """
        self.prefix_cache.count += 1
        sequence.usage.ask(self.prefix_cache.count, now := self._clock())
        slot, first = sequence.slot, sequence.slot.length
        if not slot.holds_any:
            sequence.usage.placed_at = now
        if self._shares(sequence):
            is_more_to_know = len(sequence.tokens) - first >= BLOCK
            if is_more_to_know and (known := self.prefix_cache.find(sequence)) is not None:
                self.prefix_cache.attach(sequence, known)
            elif first > slot.start and (known := self.prefix_cache.find_duplicate(sequence)) is not None:
                slot.rebase(known)
        if slot.prefix is not None:
            slot.prefix.used_at = self.prefix_cache.count
        # Before unshare(), which moves the rows that were shared into the sequence's own buffer.
        given = slot.start
        self.prefix_cache.unshare(sequence, num_rows)
        self.prefix_hits_tokens += slot.length - first
        self.prefix_asked_tokens += len(sequence.tokens) - first
        return given

    def check_fit(self, sequence: CachedSequence, num_rows: int) -> None:
        """Raise Refusal for a text that would not fit even if it were the only one."""
        num_bytes, most = self.pool.bytes_of(num_rows, sequence.slot.width), self.budget.limit_bytes
        if num_bytes > most:
            raise Refusal(
                Reason.CONTEXT_FULL,
                f"{num_rows} tokens need {num_bytes} bytes of the server's memory for K/V: it has {most}"
                " (--kv-memory); send a shorter text",
            )

    def fits_only_alone(self, sequence: CachedSequence, num_rows: int) -> bool:
        """Return whether its rows can never lie beside their own, larger copy."""
        num_bytes = self.pool.bytes_of(num_rows, sequence.slot.width)
        return not self._is_paged and 0 < self.budget.limit_bytes - num_bytes < sequence.slot.num_bytes

    def register_blocks(self, sequence: CachedSequence) -> None:
        """Make its new full blocks known. Moves no rows: another sequence may be half-way through a pass."""
        if self._shares(sequence):
            self.prefix_cache.register_blocks(sequence)

    def leave(self, sequence: CachedSequence, length: int = 0) -> None:
        """Keep as a prefix what it is about to drop behind the first `length` tokens."""
        if length < BLOCK * len(sequence.block_hashes) and self._shares(sequence):
            try:
                self.prefix_cache.retain(sequence)
            # Prefixes unused for long are worth less than this one: drop them, if that alone makes enough room.
            except OutOfKVMemory as shortage:
                if shortage.num_bytes <= self.budget.free_bytes + self.prefix_cache.num_bytes:
                    self._drop_some_unused(shortage.num_bytes)
                    with suppress(OutOfKVMemory):
                        self.prefix_cache.retain(sequence)

    def release(self, sequence: CachedSequence) -> None:
        """Give back everything of a sequence that ends."""
        self._sequences.pop(sequence, None)
        self.host.drop(sequence)
        self.leave(sequence)
        self.prefix_cache.forget(sequence)
        sequence.evict()

    def _take_copy(self, source: KVRows, first: int, count: int, spare: Sequence[CachedSequence]) -> KVRows:
        """Return a copy of rows. Raises OutOfKVMemory.

        Evicts nothing of `spare`; takes only free memory if that is empty.
        """
        assert isinstance(self.pool, BufferPool)
        copy = self._taken(self.pool.take_exactly, count, source.width, spare)
        assert isinstance(copy, KVBuffer)
        copy.copy_rows(0, source, first, count)
        return copy

    @contextmanager
    def during_pass(self) -> Iterator[None]:
        """Give only memory that is free: a session in the pass must keep its rows, though its client may have left."""
        self._pass_runs = True
        try:
            yield
        finally:
            self._pass_runs = False

    def between_passes(self) -> None:
        """Free memory now, where a pass has asked for it, unless one runs."""
        if self.must_free_all and not self._pass_runs:
            self.free_all()

    def free_all(self) -> None:
        """Give back everything that can be computed again: the machine itself has run out."""
        self.must_free_all = False
        self._drop_unused(-1)
        for sequence in list(self._sequences):
            if sequence.slot.holds_any and sequence.status != "working":
                sequence.evict()  # for good: a copy would take memory of the machine first
                self.evictions += 1
        self._drop_unused(-1)
        self.pool.trim()
        # Not at every eviction: it waits for the device, and the next allocations then have to ask the driver. Where
        # torch itself runs out it does this before it fails.
        if self.pool.shape.device.type == "cuda":
            torch.cuda.empty_cache()

    def _shares(self, sequence: CachedSequence) -> bool:
        return self._sharing != "none" and sequence.group is not None

    def _taken(
        self,
        take: Take,
        num_rows: int,
        width: int,
        spare: Sequence[CachedSequence],
        asking: CachedSequence | None = None,
    ) -> KVRows:
        """Call `take`, evicting step by step; nothing is evicted where that cannot suffice. Raises OutOfKVMemory.

        Active sessions are preempted only for a sequence that is `asking`.
        """
        try:
            return take(num_rows, width)
        except OutOfKVMemory as shortage:
            if not spare or self._pass_runs:
                raise
            victims = self._victims(spare, asking)
            # Ask before evicting: no session may lose its rows for a request that cannot fit anyway.
            if not self._can_make_room(num_rows, width, victims):
                raise
            for _ in self._free_stepwise(shortage.num_bytes, victims):
                with suppress(OutOfKVMemory):
                    return take(num_rows, width)
            raise

    def _free_stepwise(self, num_bytes: int, victims: Mapping[CachedSequence, Holding]) -> Iterator[None]:
        """Free memory, a step at each iteration."""
        self._drop_some_unused(num_bytes)
        yield
        for sequence, holding in victims.items():
            self.policy.preempt(holding, self._clock(), runs_again=not self._evict(sequence))
            self.pool.trim()
            self._drop_unused(self.budget.limit_bytes - num_bytes)
            yield

    def _can_make_room(self, num_rows: int, width: int, victims: Collection[CachedSequence]) -> bool:
        """Return whether the rows fit beside everything that must stay."""
        staying = [t for t in list(self._sequences) if t not in victims]
        links = {link for t in staying if t.slot.prefix for link in t.slot.prefix.chain()}
        return self.pool.fits_beside(
            [t.slot.buffer for t in staying],
            [t.slot.buffer for t in victims],
            sum(link.buffer.num_bytes for link in links),
            num_rows,
            width,
        )

    def _victims(self, spare: Sequence[CachedSequence], asking: CachedSequence | None) -> dict[CachedSequence, Holding]:
        """Return the sequences that may be evicted, in that order."""
        # Most parked sessions have no rows any more.
        concerned = [t for t in list(self._sequences) if t.slot.holds_any or t.usage.wanted_bytes]
        sequences = {_holding(t): t for t in concerned if t not in spare}
        order = self.policy.order(None if asking is None else _holding(asking), list(sequences), self._clock())
        return {sequences[holding]: holding for holding in order}

    def _evict(self, sequence: CachedSequence) -> bool:
        """Return whether its rows are kept on the host."""
        is_kept = self.host.keep(sequence, sequence.slot, sequence.num_restorable)
        sequence.evict()
        self.evictions += 1
        return is_kept

    def _drop_some_unused(self, num_bytes: int) -> None:
        """Drop unused prefixes of `num_bytes` or somewhat more."""
        self._drop_unused(self.budget.used_bytes - max(num_bytes, self.budget.limit_bytes // _DROP_SHARE))

    def _drop_unused(self, enough: int) -> None:
        """Drop unused prefixes, least recently used first, until at most `enough` bytes are in use."""
        if self.budget.used_bytes <= enough:
            return
        # id() breaks ties: heapq would otherwise compare prefixes, which have no order.
        unused = [(prefix.used_at, id(prefix), prefix) for prefix in self.prefix_cache.all if not prefix.users]
        heapify(unused)
        while unused and self.budget.used_bytes > enough:
            _, _, prefix = heappop(unused)
            self.prefix_cache.drop(prefix)
            if (parent := prefix.parent) is not None and not parent.users:
                # Dropping the last child makes a parent unused: it becomes a candidate at once.
                heappush(unused, (parent.used_at, id(parent), parent))


def _holding(sequence: CachedSequence) -> Holding:
    slot = sequence.slot
    return Holding(sequence.usage, sequence.status, slot.num_bytes, slot.length - slot.start, slot.holds_any)
