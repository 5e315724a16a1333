"""What drafters of heads read: one hidden state, the newest there is. Its tap, and the record of those that came."""

from __future__ import annotations

from torch import Tensor

from outrider_drafters.contracts.tap import LAST, Activations, StatelessTap
from outrider_proto.frames import TapInfo


class NewestHiddenTap(StatelessTap):
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
