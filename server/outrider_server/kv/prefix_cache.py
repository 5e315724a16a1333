"""All prefixes, and who holds which block of text: found by name, believed only when the tokens are the same.

A text that one session alone holds stays in its slot; it becomes a Prefix when a second one begins with it, or when its
session leaves it while there is room. A session that alone begins with a Prefix copies it: rows that lie together with
its own, beside those of others, go through attention in one product with theirs. The Prefix stays, for as long as there
is room, and the second session to come makes both share it. What is small every session copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import dropwhile
from typing import Protocol

from outrider_server.kv.budget import OutOfRoom
from outrider_server.kv.prefix import BLOCK, Prefix, block_names
from outrider_server.kv.slot import Slot
from outrider_server.kv.store import Store


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

    def attach(self, holder: Holder, prefix: Prefix) -> None:
        """Let it begin with that, instead of whatever it had. It has the names at once: the next one to come may find
        its copy before it has run anything."""
        self.unnote(holder, 0)
        holder.slot.attach(prefix)
        holder.names[:] = prefix.all_names()

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
        owners = (self._owners.get(name) for name in holder.names[holder.slot.start // BLOCK :])
        rest = list(dropwhile(lambda owner: isinstance(owner, Prefix), owners))
        if rest and all(owner is holder for owner in rest):
            self._publish(holder, BLOCK * len(holder.names), ())

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
        length, found, copied = holder.slot.start, None, None
        for name in holder.names[length // BLOCK :]:
            known = self._owners.get(name)
            if known is None or known is holder:
                break
            length += BLOCK
            if known is copied:
                continue
            if isinstance(known, Prefix) and not self._is_shared(known):
                copied = known
            else:
                found = _Found(known, length)
        return None if found is None else self._shared(found, holder.tokens, holder)

    def _shared(self, found: _Found, tokens: Sequence[int], holder: Holder) -> Prefix | None:
        """As a Prefix of exactly that length; None where there is no room to make one."""
        owner, length = found.owner, found.length
        try:
            if isinstance(owner, Prefix):
                prefix = self._part(owner, length, tokens, (holder,))
                if prefix is not None:
                    self._join(prefix, holder)
                return prefix
            # names are hashes, and may be made to meet
            if owner.group is None or owner.tokens[:length] != list(tokens[:length]):
                return None
            prefix = self._publish(owner, length, (holder, owner))
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

    def _join(self, prefix: Prefix, holder: Holder) -> None:
        """Let whoever else has copied it begin with it again."""
        copier = self._copies.get(prefix)
        if copier is None or copier is holder or self._is_small(prefix) or not _has_copied(copier, prefix):
            return
        if copier.tokens[: prefix.stop] == prefix.text():
            copier.slot.rebase(prefix)

    def _publish(self, owner: Holder, length: int, spare: Sequence[Holder]) -> Prefix:
        """Its first `length` rows, but for those that are in a Prefix already, as one that nobody uses yet. Raises
        OutOfRoom."""
        slot, parent = owner.slot, self._behind(owner, spare)
        first = 0 if parent is None else parent.stop
        with _in_use(parent):
            store = self._keeper.take_exactly(length - first, slot.width, spare)
        store.copy_rows(0, slot.store, first - slot.start, length - first)
        prefix = Prefix(parent, owner.tokens[first:length], owner.names[first // BLOCK : length // BLOCK], store)
        self._adopt(prefix)
        return prefix

    def _behind(self, holder: Holder, spare: Sequence[Holder]) -> Prefix | None:
        """The Prefix behind which its rows are nobody's but sessions'. Raises OutOfRoom."""
        length, known = holder.slot.start, None
        for name in holder.names[length // BLOCK :]:
            if not isinstance(owner := self._owners.get(name), Prefix):
                break
            length, known = length + BLOCK, owner
        part = None if known is None else self._part(known, length, holder.tokens, spare)
        return holder.slot.prefix if part is None else part

    def _is_small(self, prefix: Prefix) -> bool:
        """All of it, from the beginning of the text."""
        return prefix.stop * prefix.store.num_bytes // prefix.store.capacity <= self._small_bytes

    def _is_shared(self, prefix: Prefix) -> bool:
        """Whether sessions do begin with it, rather than with copies."""
        return prefix.num_slots > 0 and not self._is_small(prefix)

    def _cut(self, prefix: Prefix, length: int, spare: Sequence[Holder]) -> Prefix:
        count, width = length - prefix.start, prefix.store.features.shape[1]
        whole = prefix.store
        with _in_use(prefix):
            upper = self._keeper.take_exactly(count, width, spare)
            try:
                lower = self._keeper.take_exactly(len(prefix.tokens) - count, width, spare)
            except OutOfRoom:
                self._keeper.give(upper)
                raise
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


@contextmanager
def _in_use(prefix: Prefix | None) -> Iterator[None]:
    """It stays while room is made."""
    if prefix is None:
        yield
        return
    prefix.users += 1
    try:
        yield
    finally:
        prefix.users -= 1


def _has_copied(holder: Holder, prefix: Prefix) -> bool:
    """Whether all of its rows are among the holder's own."""
    last = prefix.stop // BLOCK - 1
    return holder.slot.start <= prefix.start and last < len(holder.names) and holder.names[last] == prefix.names[-1]
