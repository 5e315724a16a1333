"""The contract of a drafter's server half: it turns the target's activations into the features sent to the client."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from outrider_proto.frames import TapInfo

LAST = -1  # hidden state after the final norm
BEFORE_NORM = -(2**31)  # the last layer's output, which Hugging Face's hidden_states do not hold
NO_FEATURES = TapInfo(fingerprint="", family="", width=0)  # of a drafter that reads none


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """The target's activations for n tokens of one session.

    `keys` (post-RoPE) and `values` are as cached, [L, kv_heads, n, head_dim], or where layers differ one tensor
    [kv_heads, n, head_dim] a layer; empty unless the tap needs them.
    """

    keys: Tensor | Sequence[Tensor]
    values: Tensor | Sequence[Tensor]
    hidden: Mapping[int, Tensor]  # [n, E] by Hugging Face's hidden_states index (-1: after the final norm), BEFORE_NORM

    @property
    def of_all_layers(self) -> tuple[Tensor, Tensor]:
        """Keys and values of a target whose layers do not differ."""
        assert isinstance(self.keys, Tensor)
        assert isinstance(self.values, Tensor)
        return self.keys, self.values


class TapState(Protocol):
    """A tap's state in one session. Its rows may depend on all earlier positions of the session."""

    def rows(self, acts: Activations) -> Tensor:
        """Compute the features [n, width] float32 of the next n positions."""

    def truncate(self, length: int) -> None:
        """Keep only the first `length` positions."""


class Tap(Protocol):
    @property
    def info(self) -> TapInfo: ...

    @property
    def needs_kv(self) -> bool: ...

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Indices of the hidden states it reads: Hugging Face's, LAST or BEFORE_NORM."""

    def new_state(self) -> TapState: ...


class StatelessTap:
    """A tap whose rows depend only on their own position, and which is therefore its own state in every session."""

    def new_state(self) -> Self:
        return self

    def truncate(self, length: int) -> None:
        """Do nothing: there is no state to cut."""


class LastHiddenTap(StatelessTap):
    """The target's last hidden state after its final norm, as EAGLE reads it. Needs no weights."""

    needs_kv = False
    hidden_layers: tuple[int, ...] = (LAST,)

    def __init__(self, width: int) -> None:
        self.info = last_hidden_info(width)

    def rows(self, acts: Activations) -> Tensor:
        return acts.hidden[self.hidden_layers[0]].float()


def last_hidden_info(width: int) -> TapInfo:
    return TapInfo(fingerprint=f"last-hidden:{width}", family="last-hidden", width=width)
