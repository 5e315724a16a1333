"""The tap of Medusa and Hydra: the newest hidden state alone."""

from __future__ import annotations

from torch import Tensor

from outrider_drafters.contracts.tap import LAST, Activations, StatelessTap
from outrider_proto.frames import TapInfo


class NewestHiddenTap(StatelessTap):
    """The target's hidden state `offset` layers before its last one; only the newest row is sent.

    Offset 0 is after the final norm.
    """

    needs_kv = False

    def __init__(self, width: int, offset: int = 0) -> None:
        self.info = newest_hidden_info(width, offset)
        self.hidden_layers = (LAST - offset,)

    def rows(self, acts: Activations) -> Tensor:
        return acts.hidden[self.hidden_layers[0]].float()


def newest_hidden_info(width: int, offset: int = 0) -> TapInfo:
    """Describe the features."""
    # Not last_hidden_info's name, although the rows are the same: EAGLE needs every row, these only the newest.
    place = f":{offset}" if offset else ""
    return TapInfo(f"newest-hidden:{width}{place}", "newest-hidden", width, newest_only=True)
