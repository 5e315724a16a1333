"""The cache of shared prefixes: blocks are found by hash, and trusted only once their tokens are compared.

A text of a single session stays in its slot. It becomes a Prefix when a second session begins with it, or when its
session leaves it while there is memory.

A session that alone begins with a Prefix copies it: rows in one piece with its own go through attention together with
those of other sessions. The Prefix stays as long as there is memory; a second session makes both share it. Small
prefixes are always copied.

Pages are never copied: they become the Prefix's, and their session begins with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, dropwhile
from typing import Protocol, TypeAlias

from outrider_server.kv.budget import OutOfKVMemory
from outrider_server.kv.buffers import BufferPool
from outrider_server.kv.eviction import Status, Usage
from outrider_server.kv.pages import PagePool
from outrider_server.kv.prefix import BLOCK, Prefix, block_hashes_of
from outrider_server.kv.rows import KVRows
from outrider_server.kv.slot import KVSlot, RowPool


class CachedSequence(Protocol):
    """The part of a sequence that cache and memory need.

    `block_hashes` are those of the full blocks that have rows and features.
    """

    slot: KVSlot
    tokens: list[int]
    block_hashes: list[bytes]
    usage: Usage

    @property
    def status(self) -> Status: ...

    @property
    def group(self) -> bytes | None:
        """Key of the sequences it may share with; None: with none."""
        ...

    @property
    def num_computed(self) -> int:
        """Number of tokens that have both rows and features."""
        ...

    @property
    def num_restorable(self) -> int:
        """Number of its first rows that are whole, and depend on nothing that evict() drops besides."""
        ...

    def evict(self) -> None:
        """Drop rows and features; keep the tokens."""
        ...


# Returns a copy of rows, so many from the first on, without evicting anything of some sequences. Raises OutOfKVMemory.
TakeCopy: TypeAlias = Callable[[KVRows, int, int, Sequence[CachedSequence]], KVRows]


class PrefixCache:
    """All prefixes and block owners. For the engine thread only.

    `small_bytes`: up to this size, rows are copied rather than shared, but for pages.
    """

    def __init__(self, pool: RowPool, take_copy: TakeCopy, small_bytes: int) -> None:
        self._pool = pool
        self._take_copy = take_copy
        self._has_copies = isinstance(pool, BufferPool)
        self._small_bytes = small_bytes if self._has_copies else 0
        self._owners: dict[bytes, Prefix | CachedSequence] = {}
        self._copies: dict[Prefix, CachedSequence] = {}  # prefixes whose rows a session has copied
        self.num_bytes = 0
        self.all: set[Prefix] = set()
        self.count = 0  # number of uses: the clock of least recent use

    def find(self, sequence: CachedSequence) -> Prefix | None:
        """Return the longest known prefix of its text, if longer than the rows it has."""
        tokens, hashed = sequence.tokens, sequence.block_hashes
        before = hashed[-1] if hashed else sequence.group or b""
        length, owner = 0, None
        for block_hash in chain(hashed, block_hashes_of(before, tokens[BLOCK * len(hashed) :])):
            if (known := self._owners.get(block_hash)) is None:
                break
            length, owner = length + BLOCK, known
        if owner is None or length <= sequence.slot.length:
            return None
        return self._shared(owner, length, sequence)

    def attach(self, sequence: CachedSequence, prefix: Prefix) -> None:
        """Make the sequence begin with `prefix` instead of its former rows.

        It gets the block hashes at once: the next sequence may find its copy before it has run anything.
        """
        self.unregister_blocks(sequence, 0)
        sequence.slot.attach(prefix)
        sequence.block_hashes[:] = prefix.all_hashes()

    def register_blocks(self, sequence: CachedSequence) -> None:
        """Make its newest full blocks known."""
        before = sequence.block_hashes[-1] if sequence.block_hashes else sequence.group or b""
        done, num_full = BLOCK * len(sequence.block_hashes), sequence.num_computed // BLOCK * BLOCK
        for block_hash in block_hashes_of(before, sequence.tokens[done:num_full]):
            self._owners.setdefault(block_hash, sequence)
            sequence.block_hashes.append(block_hash)

    def unregister_blocks(self, sequence: CachedSequence, length: int) -> None:
        """Forget its blocks behind the first `length` tokens."""
        for block_hash in sequence.block_hashes[length // BLOCK :]:
            if self._owners.get(block_hash) is sequence:
                del self._owners[block_hash]
        del sequence.block_hashes[length // BLOCK :]

    def retain(self, sequence: CachedSequence) -> None:
        """Keep as a Prefix what this sequence alone holds and is about to leave. Raises OutOfKVMemory."""
        owners = (self._owners.get(block_hash) for block_hash in sequence.block_hashes[sequence.slot.start // BLOCK :])
        rest = list(dropwhile(lambda owner: isinstance(owner, Prefix), owners))
        if rest and all(owner is sequence for owner in rest):
            self._publish(sequence, BLOCK * len(sequence.block_hashes), ())

    def unshare(self, sequence: CachedSequence, num_rows: int) -> None:
        """Copy the prefixes it alone begins with, and small ones, where `num_rows` rows fit."""
        base = sequence.slot.prefix
        copied: list[Prefix] = []
        while self._has_copies and base is not None and (base.num_slots == 1 or self._is_small(base)):
            copied.append(base)
            base = base.parent
        if copied:
            with suppress(OutOfKVMemory):
                sequence.slot.unshare(base, num_rows - (0 if base is None else base.stop))
                self._copies.update((prefix, sequence) for prefix in copied)

    def forget(self, sequence: CachedSequence) -> None:
        """Forget the copies of a sequence that has ended."""
        for prefix in [prefix for prefix, copier in self._copies.items() if copier is sequence]:
            del self._copies[prefix]

    def drop(self, prefix: Prefix) -> None:
        """Free a prefix that is unused."""
        assert not prefix.users
        copier = self._copies.pop(prefix, None)
        for block_hash in prefix.block_hashes:
            if self._owners.get(block_hash) is prefix:
                del self._owners[block_hash]
                # The session with a copy becomes the owner, or its rows could no longer be found.
                if copier is not None and _has_copied(copier, prefix):
                    self._owners[block_hash] = copier
        if prefix.parent is not None:
            prefix.parent.users -= 1
        self.all.remove(prefix)
        self.num_bytes -= prefix.buffer.num_bytes
        self._pool.free(prefix.buffer)

    def find_duplicate(self, sequence: CachedSequence) -> Prefix | None:
        """Return a prefix of rows that two sequences computed at the same time."""
        length = found = sequence.slot.start
        owner, copied = None, None
        for block_hash in sequence.block_hashes[length // BLOCK :]:
            known = self._owners.get(block_hash)
            if known is None or known is sequence:
                break
            length += BLOCK
            if known is copied:
                continue
            # Sessions do not begin with the prefix itself, but with copies.
            if isinstance(known, Prefix) and (not known.num_slots or self._is_small(known)):
                copied = known
            else:
                owner, found = known, length
        return None if owner is None else self._shared(owner, found, sequence)

    def _shared(self, owner: Prefix | CachedSequence, length: int, sequence: CachedSequence) -> Prefix | None:
        """Return a Prefix of its first `length` tokens, which `owner` holds; None where there is no memory for one."""
        tokens = sequence.tokens
        try:
            if isinstance(owner, Prefix):
                prefix = self._part(owner, length, tokens, (sequence,))
                if prefix is not None:
                    self._join(prefix, sequence)
                return prefix
            # A hash may collide, even on purpose: only equal tokens prove that the rows are the same.
            if owner.group is None or owner.tokens[:length] != tokens[:length]:
                return None
            prefix = self._publish(owner, length, (sequence, owner))
        except OutOfKVMemory:
            return None
        if not self._is_small(prefix):
            owner.slot.rebase(prefix)
        return prefix

    def _part(
        self, known: Prefix, length: int, tokens: Sequence[int], spare: Sequence[CachedSequence]
    ) -> Prefix | None:
        """Return a Prefix of exactly the first `length` tokens, None if the tokens differ. Raises OutOfKVMemory."""
        if known.text()[:length] != list(tokens[:length]):
            return None
        return known if known.stop == length else self._cut(known, length, spare)

    def _join(self, prefix: Prefix, sequence: CachedSequence) -> None:
        """Make the sequence that has copied it begin with it again."""
        copier = self._copies.get(prefix)
        if copier is None or copier is sequence or self._is_small(prefix) or not _has_copied(copier, prefix):
            return
        if copier.tokens[: prefix.stop] == prefix.text():
            copier.slot.rebase(prefix)

    def _publish(self, owner: CachedSequence, length: int, spare: Sequence[CachedSequence]) -> Prefix:
        """Make an unused Prefix of its first `length` rows that are in none yet. Raises OutOfKVMemory."""
        slot, parent = owner.slot, self._behind(owner, spare)
        first = 0 if parent is None else parent.stop
        if self._has_copies:
            with _in_use(parent):
                buffer = self._take_copy(slot.buffer, first - slot.start, length - first, spare)
        else:
            if parent is not None:
                slot.rebase(parent)  # where both have computed the same rows, its own go
            buffer = slot.hand_over(length - first)
        prefix = Prefix(
            parent, owner.tokens[first:length], owner.block_hashes[first // BLOCK : length // BLOCK], buffer
        )
        self._adopt(prefix)
        if not self._has_copies:
            slot.end_with(prefix)
        return prefix

    def _behind(self, sequence: CachedSequence, spare: Sequence[CachedSequence]) -> Prefix | None:
        """Return the Prefix behind which its rows belong to sessions only. Raises OutOfKVMemory."""
        length, known = sequence.slot.start, None
        for block_hash in sequence.block_hashes[length // BLOCK :]:
            if not isinstance(owner := self._owners.get(block_hash), Prefix):
                break
            length, known = length + BLOCK, owner
        part = None if known is None else self._part(known, length, sequence.tokens, spare)
        return sequence.slot.prefix if part is None else part

    def _is_small(self, prefix: Prefix) -> bool:
        """Return whether all of it, from the beginning of the text, is small."""
        return prefix.stop * prefix.buffer.num_bytes // prefix.buffer.capacity <= self._small_bytes

    def _cut(self, prefix: Prefix, length: int, spare: Sequence[CachedSequence]) -> Prefix:
        count, num_bytes = length - prefix.start, prefix.buffer.num_bytes
        with _in_use(prefix):
            upper, lower = self._divided(prefix.buffer, count, spare)
        above = prefix.cut(count, upper, lower)
        self.num_bytes += lower.num_bytes - num_bytes
        self._adopt(above)
        if prefix in self._copies:
            self._copies[above] = self._copies[prefix]
        return above

    def _divided(self, buffer: KVRows, count: int, spare: Sequence[CachedSequence]) -> tuple[KVRows, KVRows]:
        """Return its first `count` rows and the others, in place of `buffer`. Raises OutOfKVMemory."""
        if isinstance(self._pool, PagePool):
            return self._pool.divided(buffer, count)
        upper = self._take_copy(buffer, 0, count, spare)
        try:
            lower = self._take_copy(buffer, count, buffer.capacity - count, spare)
        except OutOfKVMemory:
            self._pool.free(upper)
            raise
        self._pool.free(buffer)
        return upper, lower

    def _adopt(self, prefix: Prefix) -> None:
        prefix.used_at = self.count
        self.all.add(prefix)
        self.num_bytes += prefix.buffer.num_bytes
        for block_hash in prefix.block_hashes:
            self._owners[block_hash] = prefix


@contextmanager
def _in_use(prefix: Prefix | None) -> Iterator[None]:
    """Keep a prefix from being dropped while memory is freed."""
    if prefix is None:
        yield
        return
    prefix.users += 1
    try:
        yield
    finally:
        prefix.users -= 1


def _has_copied(sequence: CachedSequence, prefix: Prefix) -> bool:
    """Return whether all rows of the prefix are among the sequence's own."""
    last = prefix.stop // BLOCK - 1
    return (
        sequence.slot.start <= prefix.start
        and last < len(sequence.block_hashes)
        and sequence.block_hashes[last] == prefix.block_hashes[-1]
    )
