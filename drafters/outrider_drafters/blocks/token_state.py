"""What a draft state stands on: its tokens and how many features it was given. Knows no family."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outrider_proto.errors import UsageError


class TokenState:
    """Tokens and the number of features.

    Features are those of the first positions without gaps. The newest may be missing (stale), and the root's may be
    there before the root has a successor; `usable` counts those a drafter may use: none of the root's own.
    """

    def __init__(self, feature_width: int) -> None:
        self.tokens: list[int] = []
        self.num_features = 0
        self._width = feature_width

    @property
    def usable(self) -> int:
        return max(0, min(self.num_features, len(self.tokens) - 1))

    def append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def add_features(self, first: int, rows: Tensor) -> Tensor:
        """Of the feature rows of positions first, first + 1, ... those it lacks; they count as taken.

        Raises UsageError for rows of another width, a gap, or a position without a token.
        """
        if rows.ndim != 2 or rows.shape[1] != self._width:
            raise UsageError(f"features of shape {list(rows.shape)}: need [n, {self._width}]")
        if not 0 <= first <= self.num_features:
            raise UsageError(f"features from position {first}: there are {self.num_features}, the next one is lacking")
        if first + len(rows) > len(self.tokens):
            raise UsageError(f"features up to position {first + len(rows) - 1}: there are {len(self.tokens)} tokens")
        lacking = rows[self.num_features - first :]
        self.num_features += len(lacking)
        return lacking

    def rollback(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens and their features. Raises UsageError when there are fewer."""
        if not 0 <= num_tokens <= len(self.tokens):
            raise UsageError(f"rollback to {num_tokens} tokens: there are {len(self.tokens)}")
        del self.tokens[num_tokens:]
        self.num_features = min(self.num_features, num_tokens)

    def need_root(self) -> None:
        """Raise UsageError without a token to draft from."""
        if not self.tokens:
            raise UsageError("nothing to draft from: append the prompt's tokens first")


class WithTokenState:
    """The part of a draft state that is its record. See drafter.DraftState."""

    _token_state: TokenState

    @property
    def num_tokens(self) -> int:
        return len(self._token_state.tokens)

    @property
    def num_features(self) -> int:
        return self._token_state.num_features

    def append(self, tokens: Sequence[int]) -> None:
        self._token_state.append(tokens)
