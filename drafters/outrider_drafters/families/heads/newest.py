"""What drafters of heads read: one hidden state, the newest there is. Its tap, and the record of those that came."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from torch import Tensor

from outrider_drafters.blocks.rows import Rows
from outrider_drafters.contracts.tap import LAST, Activations, Memoryless
from outrider_proto.errors import UsageError
from outrider_proto.frames import TapInfo


class NewestHiddenTap(Memoryless):
    """The target's hidden state `offset` layers before its last one, of which only the newest row is sent; offset 0 is
    after the final norm."""

    needs_kv = False

    def __init__(self, width: int, offset: int = 0) -> None:
        self.info = newest_hidden_info(width, offset)
        self.hidden_layers = (LAST - offset,)

    def rows(self, acts: Activations) -> Tensor:
        return acts.hidden[self.hidden_layers[0]].float()


def newest_hidden_info(width: int, offset: int = 0) -> TapInfo:
    """Not the name under which EAGLE asks for last hidden states: it wants them all."""
    place = f":{offset}" if offset else ""
    return TapInfo(f"newest-hidden:{width}{place}", "newest-hidden", width, newest_only=True)


class NewestRecord:
    """Tokens, and the feature rows of some of their positions.

    Rows come in order of position, with gaps: a server sends the newest alone. All that came are kept, so that a
    rollback finds the one before.
    """

    def __init__(self, width: int, like: Tensor) -> None:
        self.tokens: list[int] = []
        self._positions: list[int] = []
        self._rows = Rows(width=width, dtype=like.dtype, device=like.device)
        self._width = width

    @property
    def num_features(self) -> int:
        """One more than the newest position that has a feature."""
        return self._positions[-1] + 1 if self._positions else 0

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def take(self, first: int, rows: Tensor) -> None:
        """Keep the feature rows of positions first, first + 1, ... that are newer than the newest.

        Raises UsageError for rows of another width or a position without a token.
        """
        if rows.ndim != 2 or rows.shape[1] != self._width:
            raise UsageError(f"features of shape {list(rows.shape)}: need [n, {self._width}]")
        end = first + len(rows)
        if first < 0 or end > len(self.tokens):
            raise UsageError(f"features of positions {first} to {end - 1}: there are {len(self.tokens)} tokens")
        newer = range(max(first, self.num_features), end)
        if newer:
            self._positions.extend(newer)
            self._rows.append(rows[newer.start - first :].to(self._rows.all))

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens and their features. Raises UsageError when there are fewer."""
        if not 0 <= num_tokens <= len(self.tokens):
            raise UsageError(f"rollback to {num_tokens} tokens: there are {len(self.tokens)}")
        del self.tokens[num_tokens:]
        del self._positions[bisect_left(self._positions, num_tokens) :]
        self._rows.truncate(len(self._positions))

    def newest(self, end: int) -> tuple[int, Tensor] | None:
        """Position and row [1, width] of the newest feature before position `end`, if any."""
        number = bisect_left(self._positions, end) - 1
        return None if number < 0 else (self._positions[number], self._rows.all[number : number + 1])
