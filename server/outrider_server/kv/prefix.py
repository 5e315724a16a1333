"""Rows that several sessions share, in blocks of tokens, and how blocks are named.

    session 1   [ system prompt ][ question 1 ][ own rows ...        a tree of prefixes: each holds the rows below its
    session 2   [ system prompt ][ question 2 ][ own rows ...        parent's, is never written again, and is cut in
                '-- one Prefix -'                                    two where a new text leaves it half-way

A block's name is a hash of the name before it and its tokens, so it stands for the whole text up to its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from outrider_proto.packing import pack_tokens
from outrider_server.kv.pages import PAGE
from outrider_server.kv.rows import KVRows

BLOCK = PAGE  # tokens: a shared prefix is whole pages
_NAME_BYTES = 16


class Prefix:
    """Rows start .. stop-1 of every text that begins with the tokens of `chain()`."""

    def __init__(
        self, parent: Prefix | None, tokens: Sequence[int], block_hashes: Sequence[bytes], buffer: KVRows
    ) -> None:
        assert len(tokens) == buffer.capacity == BLOCK * len(block_hashes)
        self.parent = parent
        self.start = 0 if parent is None else parent.stop
        self.tokens = list(tokens)
        self.block_hashes = list(block_hashes)
        self.buffer = buffer
        self.users = 0  # slots that end with it, and child prefixes
        self.num_slots = 0  # slots that begin with it
        self.used_at = 0  # PrefixCache.count at its last use
        if parent is not None:
            parent.users += 1

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    def chain(self) -> list[Prefix]:
        """Return all its ancestors, the root first, and itself."""
        links = [self]
        while (parent := links[-1].parent) is not None:
            links.append(parent)
        return links[::-1]

    def text(self) -> list[int]:
        """Return all tokens from the beginning of the text to `stop`."""
        return [token for link in self.chain() for token in link.tokens]

    def all_hashes(self) -> list[bytes]:
        """Return the hashes of all blocks up to `stop`."""
        return [block_hash for link in self.chain() for block_hash in link.block_hashes]

    def cut(self, count: int, upper: KVRows, lower: KVRows) -> Prefix:
        """Split off the first `count` rows as a new parent, which is returned.

        `upper` and `lower` hold the rows of the two parts. Users of `self` keep the same text as before.
        """
        blocks = count // BLOCK
        above = Prefix(self.parent, self.tokens[:count], self.block_hashes[:blocks], upper)
        if self.parent is not None:
            self.parent.users -= 1  # it is the new one's child now
        self.parent, self.start, self.buffer = above, above.stop, lower
        self.tokens, self.block_hashes = self.tokens[count:], self.block_hashes[blocks:]
        above.users += 1
        above.num_slots = self.num_slots
        above.used_at = self.used_at
        return above


def group_hash(*whose: bytes) -> bytes:
    """Return the hash that a sharing group's chains begin with; chains of different groups never meet."""
    digest = hashlib.blake2b(digest_size=_NAME_BYTES)
    for part in whose:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


def block_hashes_of(before: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
    """Yield the hash of every full block of `tokens`, which follow the block hashed `before`."""
    for first in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = pack_tokens(tokens[first : first + BLOCK])
        before = hashlib.blake2b(before + block, digest_size=_NAME_BYTES).digest()
        yield before
