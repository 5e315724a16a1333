"""What the server holds of one session: K/V rows, the tokens they stand for, and the feature rows made of them; and
what the target has said comes next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outrider_drafters.drafter import Drafter
from outrider_drafters.tap import Activations, Tap
from outrider_proto.packing import prefix_hash
from outrider_server.drafting import SessionDrafter
from outrider_server.slots import KVShape, Slot

_FIRST_CAPACITY = 256


class Held:
    """Slot, tokens and feature rows of one session; between passes all three cover the same positions.

    `bonus` is the last verdict's, as long as it follows what is held; None where the text has ended. `drafting` is
    there where the server may draft for this session.
    """

    def __init__(self, kv: KVShape, tap: Tap | None, drafter: Drafter | None = None) -> None:
        self.slot = Slot(kv)
        self.tap = tap
        self.drafting = SessionDrafter(drafter) if drafter else None
        self.bonus: int | None = None
        self._tap_state = tap.new_state() if tap else None
        self.tokens: list[int] = []
        self._features = np.empty((_FIRST_CAPACITY if tap else 0, tap.info.width if tap else 0), dtype=np.float32)
        self._num_features = 0

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        if length < len(self.tokens):
            self.bonus = None
        self.slot.truncate(length)
        del self.tokens[length:]
        if self._tap_state is not None:
            self._tap_state.truncate(length)
        self._num_features = min(self._num_features, length)

    def commit(self, chain: Sequence[int], path: Sequence[int], path_tokens: Sequence[int], bonus: int | None) -> None:
        """Keep the pass's chain and the accepted path; their features follow by `add_features`."""
        self.slot.commit(len(chain), path)
        self.tokens.extend(chain)
        self.tokens.extend(path_tokens)
        self.bonus = bonus

    def awaits(self, base_len: int, root: int, prefix: bytes) -> bool:
        """Whether `root` is what comes next: exactly `base_len` tokens are held, it is the last verdict's bonus, and
        with it they hash to `prefix`."""
        if len(self.tokens) != base_len or root != self.bonus:
            return False
        return prefix_hash([*self.tokens, root]) == prefix

    def add_features(self, hidden: dict[int, Tensor]) -> None:
        """Run the tap over the positions that have no features yet; `hidden` holds their hidden states."""
        assert self._tap_state is not None
        first, stop = self._num_features, len(self.tokens)
        keys, values = self.slot.rows(first, stop)
        rows = self._tap_state.rows(Activations(keys=keys, values=values, hidden=hidden)).float().cpu().numpy()
        self._reserve(stop)
        self._features[first:stop] = rows
        self._num_features = stop

    def features(self, first: int) -> tuple[int, NDArray[np.float32]]:
        """A copy of the rows of positions first, first + 1, ... that its drafter reads, and where they begin."""
        if self.tap is not None and self.tap.info.newest_only:
            first = max(first, self._num_features - 1)
        return first, self._features[first : self._num_features].copy()

    def _reserve(self, num_rows: int) -> None:
        if num_rows > len(self._features):
            grown = np.empty((max(num_rows, 2 * len(self._features)), self._features.shape[1]), dtype=np.float32)
            grown[: self._num_features] = self._features[: self._num_features]
            self._features = grown
