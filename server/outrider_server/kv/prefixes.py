"""All prefixes, and who holds which block of text: found by name, believed only when the tokens are the same.

A text that one session alone holds stays in its slot; it becomes a Prefix when a second one begins with it, or when its
session leaves it while there is room. A session that alone begins with a Prefix copies it: rows that lie together with
its own, beside those of others, go through attention in one product with theirs. The Prefix stays, for as long as there
is room, and the second session to come makes both share it. What is small every session copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
    """Belongs to the model thread. `small_bytes`: what is copied rather than shared."""

    def __init__(self, keeper: Keeper, small_bytes: int) -> None:
        self._keeper = keeper
        self._small_bytes = small_bytes
        self._owners: dict[bytes, Prefix | Holder] = {}
        self._copies: dict[Prefix, Holder] = {}  # whose rows a session has copied
        self.num_bytes = 0
        self.all: set[Prefix] = set()

    def find(self, holder: Holder) -> Prefix | None:
        """Of its text, the longest part that is known, where that is more than it has rows of."""
        tokens = holder.tokens
        length, owner = 0, None
        for name in block_names(holder.group or b"", tokens):
            if (known := self._owners.get(name)) is None:
                break
            length, owner = length + BLOCK, known
        if owner is None or length <= holder.slot.length:
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
        """It is about to leave its text: let what it alone knows outlive that. Raises OutOfRoom."""
        slot, names = holder.slot, holder.names[holder.slot.start // BLOCK :]
        length, known = slot.start, None
        while names and isinstance(owner := self._owners.get(names[0]), Prefix):
            length, known = length + BLOCK, owner
            names = names[1:]
        if not names or any(self._owners.get(name) is not holder for name in names):
            return
        parent = slot.prefix if known is None else self._part(known, length, holder.tokens, ())
        if known is None or parent is not None:
            self._publish(holder, parent, length + BLOCK * len(names), ())

    def unshare(self, holder: Holder, num_rows: int) -> None:
        """Copy what it alone begins with, or what is small, where there is room for `num_rows` rows of its text."""
        base = holder.slot.prefix
        copied: list[Prefix] = []
        while base is not None and (base.num_slots == 1 or self._is_small(base)):
            copied.append(base)
            base = base.parent
        if copied:
            with suppress(OutOfRoom):
                holder.slot.unshare(base, num_rows - (0 if base is None else base.stop))
                self._copies.update((prefix, holder) for prefix in copied)

    def forget(self, holder: Holder) -> None:
        """It has ended."""
        for prefix in [prefix for prefix, copier in self._copies.items() if copier is holder]:
            del self._copies[prefix]

    def drop(self, prefix: Prefix) -> None:
        """One that nobody uses."""
        assert not prefix.users
        copier = self._copies.pop(prefix, None)
        for name in prefix.names:
            if self._owners.get(name) is prefix:
                del self._owners[name]
                if copier is not None and _has_copied(copier, prefix):
                    self._owners[name] = copier
        if prefix.parent is not None:
            prefix.parent.users -= 1
        self.all.remove(prefix)
        self.num_bytes -= prefix.store.num_bytes
        self._keeper.give(prefix.store)

    def elsewhere(self, holder: Holder) -> Prefix | None:
        """Two that came at once have computed the same: of its own rows, those that begin somebody else's."""
        length, owner = holder.slot.start, None
        for name in holder.names[length // BLOCK :]:
            known = self._owners.get(name)
            if known is None or known is holder or (isinstance(known, Prefix) and not self._is_shared(known)):
                break
            length, owner = length + BLOCK, known
        if owner is None:
            return None
        return self._shared(_Found(owner, length), holder.tokens, holder)

    def _shared(self, found: _Found, tokens: Sequence[int], holder: Holder) -> Prefix | None:
        """As a Prefix of exactly that length; None where there is no room to make one."""
        owner, length = found.owner, found.length
        try:
            if isinstance(owner, Prefix):
                prefix = self._part(owner, length, tokens, (holder,))
                if prefix is not None:
                    self._join(prefix)
                return prefix
            # names are hashes, and may be made to meet
            if owner.group is None or owner.tokens[:length] != list(tokens[:length]):
                return None
            prefix = self._publish(owner, owner.slot.prefix, length, (holder, owner))
        except OutOfRoom:
            return None
        if not self._is_small(prefix):
            owner.slot.rebase(prefix)
        return prefix

    def _part(self, known: Prefix, length: int, tokens: Sequence[int], spare: Sequence[Holder]) -> Prefix | None:
        """A Prefix of exactly the first `length` tokens. None where it is not of these. Raises OutOfRoom."""
        if known.text()[:length] != list(tokens[:length]):
            return None
        return known if known.stop == length else self._cut(known, length, spare)

    def _join(self, prefix: Prefix) -> None:
        """Let whoever has copied it begin with it again."""
        copier = self._copies.get(prefix)
        if copier is not None and not self._is_small(prefix) and _has_copied(copier, prefix):
            copier.slot.rebase(prefix)

    def _publish(self, owner: Holder, parent: Prefix | None, length: int, spare: Sequence[Holder]) -> Prefix:
        """Its own rows behind `parent`, up to `length`, as a Prefix that nobody uses yet."""
        slot, first = owner.slot, 0 if parent is None else parent.stop
        store = self._keeper.take_exactly(length - first, slot.width, spare)
        store.copy_rows(0, slot.store, first - slot.start, length - first)
        prefix = Prefix(parent, owner.tokens[first:length], owner.names[first // BLOCK : length // BLOCK], store)
        self._adopt(prefix)
        return prefix

    def _is_small(self, prefix: Prefix) -> bool:
        """All of it, from the beginning of the text."""
        return prefix.stop * prefix.store.num_bytes // prefix.store.capacity <= self._small_bytes

    def _is_shared(self, prefix: Prefix) -> bool:
        """Whether sessions do begin with it, rather than with copies."""
        return prefix.num_slots > 0 and not self._is_small(prefix)

    def _cut(self, prefix: Prefix, length: int, spare: Sequence[Holder]) -> Prefix:
        count, width = length - prefix.start, prefix.store.features.shape[1]
        whole = prefix.store
        prefix.users += 1  # while room is made
        try:
            upper = self._keeper.take_exactly(count, width, spare)
            try:
                lower = self._keeper.take_exactly(len(prefix.tokens) - count, width, spare)
            except OutOfRoom:
                self._keeper.give(upper)
                raise
        finally:
            prefix.users -= 1
        above = prefix.cut(count, upper, lower)
        self.num_bytes += lower.num_bytes - whole.num_bytes
        self._keeper.give(whole)
        self._adopt(above)
        if prefix in self._copies:
            self._copies[above] = self._copies[prefix]
        return above

    def _adopt(self, prefix: Prefix) -> None:
        prefix.used_at = self._keeper.count
        self.all.add(prefix)
        self.num_bytes += prefix.store.num_bytes
        for name in prefix.names:
            self._owners[name] = prefix


def _has_copied(holder: Holder, prefix: Prefix) -> bool:
    """Whether all of its rows are among the holder's own."""
    last = prefix.stop // BLOCK - 1
    return holder.slot.start <= prefix.start and last < len(holder.names) and holder.names[last] == prefix.names[-1]
