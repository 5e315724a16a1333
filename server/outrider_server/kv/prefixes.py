"""All prefixes, and who holds which block of text: found by name, believed only when the tokens are the same.

A text that one session alone holds stays in its slot; it becomes a Prefix when a second one begins with it, or when its
session ends while there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider_server.kv.budget import OutOfRoom
from outrider_server.kv.prefix import BLOCK, Prefix, block_names
from outrider_server.kv.store import Store
from outrider_server.slots import Slot


class Holder(Protocol):
    """A session, as far as its text and rows go. `names`: of the full blocks of which it has rows and features."""

    slot: Slot
    tokens: list[int]
    names: list[bytes]

    @property
    def group(self) -> bytes | None:
        """Only the like share; None: with nobody."""
        ...

    @property
    def num_standing(self) -> int:
        """Tokens that have both rows and features."""
        ...


class Keeper(Protocol):
    """Whoever has room for rows."""

    @property
    def count(self) -> int:
        """Of uses so far."""
        ...

    def take_exactly(self, num_rows: int, width: int, spare: Sequence[Holder]) -> Store:
        """Without taking anything from `spare`. Raises OutOfRoom."""
        ...

    def give(self, store: Store) -> None: ...


@dataclass(frozen=True, slots=True)
class _Found:
    """The first `length` tokens of a text are held by `owner`."""

    owner: Prefix | Holder
    length: int


class Prefixes:
    """Belongs to the model thread."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._owners: dict[bytes, Prefix | Holder] = {}
        self.num_bytes = 0
        self.all: set[Prefix] = set()

    def find(self, holder: Holder) -> Prefix | None:
        """Of its text, the longest part that is known, where that is more than it begins with already."""
        tokens = holder.tokens
        length, owner = 0, None
        for name in block_names(holder.group or b"", tokens):
            if (known := self._owners.get(name)) is None:
                break
            length, owner = length + BLOCK, known
        if owner is None or length <= holder.slot.start:
            return None
        return self._shared(_Found(owner, length), tokens, holder)

    def note(self, holder: Holder) -> None:
        """Make its newest full blocks known."""
        before = holder.names[-1] if holder.names else holder.group or b""
        done, num_full = BLOCK * len(holder.names), holder.num_standing // BLOCK * BLOCK
        for name in block_names(before, holder.tokens[done:num_full]):
            self._owners.setdefault(name, holder)
            holder.names.append(name)

    def unnote(self, holder: Holder, length: int) -> None:
        """It holds `length` tokens from now on."""
        for name in holder.names[length // BLOCK :]:
            if self._owners.get(name) is holder:
                del self._owners[name]
        del holder.names[length // BLOCK :]

    def keep(self, holder: Holder) -> None:
        """It is about to end: let what it alone knows outlive it. Raises OutOfRoom."""
        slot, names = holder.slot, holder.names[holder.slot.start // BLOCK :]
        if names and all(self._owners.get(name) is holder for name in names):
            self._publish(holder, slot.start + BLOCK * len(names), ())

    def drop(self, prefix: Prefix) -> None:
        """One that nobody uses."""
        assert not prefix.users
        for name in prefix.names:
            if self._owners.get(name) is prefix:
                del self._owners[name]
        if prefix.parent is not None:
            prefix.parent.users -= 1
        self.all.remove(prefix)
        self.num_bytes -= prefix.store.num_bytes
        self._keeper.give(prefix.store)

    def elsewhere(self, holder: Holder) -> Prefix | None:
        """Two that came at once have computed the same: of its own rows, those that begin somebody else's."""
        length, owner = holder.slot.start, None
        for name in holder.names[length // BLOCK :]:
            if (known := self._owners.get(name)) is None or known is holder:
                break
            length, owner = length + BLOCK, known
        if owner is None:
            return None
        return self._shared(_Found(owner, length), holder.tokens, holder)

    def _shared(self, found: _Found, tokens: Sequence[int], holder: Holder) -> Prefix | None:
        """As a Prefix of exactly that length; None where there is no room to make one."""
        owner, length = found.owner, found.length
        if not isinstance(owner, Prefix) and owner.group is None:
            return None
        known = owner.text() if isinstance(owner, Prefix) else owner.tokens
        if known[:length] != list(tokens[:length]):  # names are hashes, and may be made to meet
            return None
        try:
            if isinstance(owner, Prefix):
                return owner if owner.stop == length else self._cut(owner, length, holder)
            prefix = self._publish(owner, length, (holder, owner))
        except OutOfRoom:
            return None
        owner.slot.rebase(prefix)
        return prefix

    def _publish(self, owner: Holder, length: int, spare: Sequence[Holder]) -> Prefix:
        """Its own rows up to `length` as a Prefix that nobody uses yet."""
        slot = owner.slot
        store = self._keeper.take_exactly(length - slot.start, slot.width, spare)
        store.copy_rows(0, slot.store, 0, length - slot.start)
        names = owner.names[slot.start // BLOCK : length // BLOCK]
        prefix = Prefix(slot.prefix, owner.tokens[slot.start : length], names, store)
        self._adopt(prefix)
        return prefix

    def _cut(self, prefix: Prefix, length: int, holder: Holder) -> Prefix:
        count, width = length - prefix.start, holder.slot.width
        whole = prefix.store
        prefix.users += 1  # while room is made
        try:
            upper = self._keeper.take_exactly(count, width, (holder,))
            try:
                lower = self._keeper.take_exactly(len(prefix.tokens) - count, width, (holder,))
            except OutOfRoom:
                self._keeper.give(upper)
                raise
        finally:
            prefix.users -= 1
        above = prefix.cut(count, upper, lower)
        self.num_bytes += lower.num_bytes - whole.num_bytes
        self._keeper.give(whole)
        self._adopt(above)
        return above

    def _adopt(self, prefix: Prefix) -> None:
        prefix.used_at = self._keeper.count
        self.all.add(prefix)
        self.num_bytes += prefix.store.num_bytes
        for name in prefix.names:
            self._owners[name] = prefix
