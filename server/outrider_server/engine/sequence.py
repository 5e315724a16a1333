"""One session's tokens, their K/V and feature rows, and the token that the target says comes next.

          0 .. slot.length-1          slot.length .. len(tokens)-1
tokens    with rows                   known, but without rows: evicted, or not run yet
"""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import Activations, StatelessTap, Tap
from outrider_proto.errors import Reason, Violation
from outrider_proto.packing import PrefixHasher
from outrider_server.engine.server_drafter import SessionDrafter
from outrider_server.kv.budget import KVShape, OutOfKVMemory
from outrider_server.kv.eviction import Status, Usage
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.slot import LayerTensors


class ActiveRequest(Protocol):
    """The request that a sequence runs."""

    @property
    def over(self) -> bool: ...


class Sequence:
    """Tokens of one session, with rows and features of the first of them.

    Between passes features cover the same positions as rows, but for the newest rows where nobody waits for them: their
    hidden states are kept until then. `bonus` is the last verdict's as long as it follows the tokens, None where the
    text has ended. `drafter` is set where the server may draft for this session. Sessions of one `payer` may share the
    rows of a common prefix. Rows and memory are shared out among payers, or else holders.
    """

    def __init__(
        self, kv: KVShape | KVMemory, tap: Tap | None, drafter: Drafter | None = None, payer: str = "", holder: str = ""
    ) -> None:
        self.memory = kv if isinstance(kv, KVMemory) else KVMemory(kv, sharing="none")
        self.payer = payer
        self.tap = tap
        self.drafter = SessionDrafter(drafter) if drafter else None
        self.bonus: int | None = None
        self.parked = False  # no stream is attached
        # Of a caller of this machine without a key, each session counts for itself.
        self.usage = Usage(payer or holder or id(self))
        self.tokens: list[int] = []
        self.block_hashes: list[bytes] = []
        self._hasher = PrefixHasher()  # of the first tokens
        self.tap_state = tap.new_state() if tap else None  # a stateless one is shared by many sessions
        self.num_features = 0  # tokens that have features
        self._hidden: dict[int, list[Tensor]] = {}  # of the rows that have no features yet, [n, E] each
        self._request: ActiveRequest | None = None
        self._released = False
        self._group = self.memory.group(payer, tap.info.fingerprint if tap else "")
        self._is_invalid = False
        self.slot = self.memory.new_slot(self, tap.info.width if tap else 0)

    @property
    def uncomputed(self) -> list[int]:
        """Tokens that must be run before anything can follow them."""
        return self.tokens[self.slot.length :]

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) - self.slot.length

    @property
    def num_computed(self) -> int:
        """Number of tokens that have both rows and features."""
        return self.slot.length if self.tap is None else min(self.slot.length, self.num_features)

    @property
    def num_restorable(self) -> int:
        return self.num_computed if self._has_plain_rows else 0

    @property
    def group(self) -> bytes | None:
        """Key of the sequences it shares with; None where its features depend on more than K/V rows."""
        return self._group if self._has_plain_rows else None

    @property
    def _has_plain_rows(self) -> bool:
        """Whether its rows are right, and its features depend on nothing else."""
        return not self._is_invalid and (self.tap is None or isinstance(self.tap_state, StatelessTap))

    @property
    def status(self) -> Status:
        """State that decides how soon its rows are evicted."""
        if self.usage.waits_since is not None and not self.parked:
            return "waiting"
        if self._request is not None and not self._request.over:
            return "working"
        return "parked" if self.parked else "idle"

    def begin(self, request: ActiveRequest, base_len: int, context: abc.Sequence[int], num_more: int) -> None:
        """Set the text to the first `base_len` tokens and `context`, with room for `num_more` rows.

        Raises Violation when fewer tokens are held, Refusal for what can never fit, and OutOfKVMemory for what does not
        fit now: then it may be called again.
        """
        if self._released or base_len > len(self.tokens):
            raise Violation(
                Reason.BAD_SEQUENCE,
                f"base_len={base_len}: the server holds {len(self.tokens)} tokens of this session",
            )
        # First: a draft that is refused leaves the session as it was.
        self.memory.check_fit(self, base_len + len(context) + num_more)
        if self.tokens[base_len:] != list(context):
            # Before truncate(): the rows that it leaves are found by its block hashes, which truncate() drops.
            self.memory.leave(self, base_len)
            self.truncate(base_len)
            self.tokens.extend(context)
            self.bonus = None if context else self.bonus
        self.memory.between_passes()
        if self._is_invalid:
            self.evict()
            self._is_invalid = False
        given = self.memory.begin(self, len(self.tokens) + num_more)
        if self.tap is not None:
            # More than before only where a longer prefix has replaced all its rows.
            self.num_features = max(self.num_features, given)
            self._trim_hidden()
        self.reserve(num_more)
        self._request = request

    def reserve(self, num_more: int) -> None:
        """Make room for the rows of all tokens and `num_more` behind them. Raises as begin()."""
        self.memory.between_passes()
        total = len(self.tokens) + num_more
        self.memory.check_fit(self, total)
        take = partial(self.memory.take_for, self)
        try:
            self.slot.reserve(total - self.slot.length, take)
        except OutOfKVMemory:
            if not self.memory.fits_only_alone(self, total):
                raise
            self.evict()
            # Its old rows and their larger copy do not fit side by side: recompute them into the new buffer.
            self.slot.reserve(total, take)
        self.usage.settle()
        if not self.num_untapped and self.memory.host.restore(self, self.slot):
            self.num_features = self.slot.length if self.tap else 0
            self.memory.register_blocks(self)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        if length < len(self.tokens):
            self.bonus = None
        del self.tokens[length:]
        if length < self._hasher.length:
            self._hasher = PrefixHasher()
        if self.drafter is not None:
            self.drafter.truncate(length)
        self.memory.host.truncate(self, length)
        self._keep_rows(min(length, self.slot.length))

    def evict(self) -> None:
        """Drop rows and features; keep the tokens."""
        self._keep_rows(0)
        self.slot.clear()

    def invalidate(self) -> None:
        """Discard its rows before the next request, and let no other sequence use them: a pass failed."""
        self._is_invalid = True
        self.memory.host.drop(self)

    def release(self) -> None:
        """Give everything back; the session has ended."""
        self._released = True
        self.memory.release(self)

    def commit(
        self,
        chain: abc.Sequence[int],
        path: abc.Sequence[int],
        path_tokens: abc.Sequence[int],
        bonus: int | None,
        *,
        placed: bool = False,
    ) -> None:
        """Keep the pass's chain and the accepted path; their features follow by `add_features`.

        `placed`: the path's rows have been moved already.
        """
        first = self.slot.length
        self.slot.commit(len(chain), path, placed=placed)
        self.tokens[first : self.slot.length] = [*chain, *path_tokens]
        self.bonus = bonus
        self.memory.touch(self)
        if self.tap is None:
            self.memory.register_blocks(self)

    def expects(self, base_len: int, root: int, prefix: bytes) -> bool:
        """Return whether `root` comes next: the last bonus, after exactly `base_len` tokens, hashing to `prefix`."""
        if len(self.tokens) != base_len or root != self.bonus:
            return False
        self._hasher.extend(self.tokens[self._hasher.length :])
        return self._hasher.hash_with(root) == prefix

    @property
    def num_untapped(self) -> int:
        """Number of rows without features."""
        return 0 if self.tap is None else self.slot.length - self.num_features

    def add_hidden(self, hidden: Mapping[int, Tensor]) -> None:
        """Keep the hidden states of the rows that were committed last, for their features."""
        for layer, rows in hidden.items():
            self._hidden.setdefault(layer, []).append(rows)

    def defer_features(self) -> None:
        """Prepare for passes that run before the features of these rows are made."""
        # Copies: a slice would keep the hidden states of the whole pass, all sessions' rows, in memory.
        for rows in self._hidden.values():
            rows[-1] = rows[-1].clone()

    def activations(self) -> Activations:
        """Return the activations of all rows without features."""
        first, stop = self.num_features, self.slot.length
        keys: LayerTensors
        values: LayerTensors
        if self.tap is not None and self.tap.needs_kv:
            keys, values = self.slot.rows(first, stop)
        else:
            rows_of = self.slot.shape.rows
            keys = values = torch.empty(len(rows_of), rows_of[0].kv_heads, stop - first, 0)
        hidden = {layer: rows[0] if len(rows) == 1 else torch.cat(rows) for layer, rows in self._hidden.items()}
        return Activations(keys=keys, values=values, hidden=hidden)

    def add_features(self, rows: NDArray[np.float32]) -> None:
        """Store the features of the rows that had none."""
        self.slot.put_features(self.num_features, rows)
        self.num_features = self.slot.length
        self._hidden.clear()
        self.memory.register_blocks(self)

    def first_feature(self, first: int) -> int:
        """Return the first row, from `first` on, that its drafter reads."""
        is_newest_only = self.tap is not None and self.tap.info.newest_only
        return max(first, self.num_features - 1, 0) if is_newest_only else first

    def feature_rows(self, first: int, stop: int) -> NDArray[np.float32]:
        """Return a copy of the feature rows first .. stop-1, which must be held, and keep it active."""
        self.memory.touch(self)
        return self.slot.features(first, stop)

    def features(self, first: int) -> tuple[int, NDArray[np.float32]]:
        """Return the feature rows from `first` on that its drafter reads, and where they begin."""
        first = self.first_feature(first)
        return first, self.slot.features(first, max(first, self.num_features))

    def _keep_rows(self, length: int) -> None:
        """Keep the first `length` rows, or fewer where they are shared."""
        self.slot.truncate(length)
        length = self.slot.length
        self.memory.prefix_cache.unregister_blocks(self, length)
        self.num_features = min(self.num_features, length)
        self._trim_hidden()
        if self.tap_state is not None:
            # It may lag behind the rows.
            self.tap_state.truncate(self.num_features)

    def _trim_hidden(self) -> None:
        """Forget the hidden states of rows that are no longer held."""
        if not self.num_untapped:  # an empty slice would keep what it is a slice of
            self._hidden.clear()
        for layer, rows in self._hidden.items():
            self._hidden[layer] = [torch.cat(rows)[: self.num_untapped]]
