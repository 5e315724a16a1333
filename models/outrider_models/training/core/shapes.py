"""What several families choose alike: the sizes of a layer, how it starts, the tapped layers, the mask's token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field

from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_models.training.core.interfaces import Frequencies, TargetFacts
from outrider_proto.errors import UsageError

Init = Literal["random", "target"]
RAREST = -1  # a mask_token: the token that replies have least, of several the first
MaskToken = Annotated[int, Field(ge=RAREST)]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a drafter's layer that are not the target's by themselves."""

    kv_heads: int
    intermediate: int

    @classmethod
    def like(cls, target: TargetFacts) -> Self:
        """Return the sizes of a layer like the target's."""
        return cls(kv_heads=target.sizes.kv_heads, intermediate=target.mlp)

    def block(self, target: TargetSizes, rope_theta: float, *, qk_norm: bool = False) -> BlockShape:
        """Return the sizes of a block, whose width and heads are the target's."""
        sizes = target.hidden, target.heads, self.kv_heads, target.head_dim, self.intermediate
        return BlockShape(*sizes, rope_theta=rope_theta, eps=target.eps, qk_norm=qk_norm)


def check_target_layers(layers: Sequence[int], target: TargetSizes | None = None) -> None:
    """Raise UsageError unless there are tapped layers, each once, and each of them the target's."""
    if not layers or len(set(layers)) != len(layers):
        raise UsageError(f"target_layers={list(layers)}: need at least one, none twice")
    if target is not None and (wrong := [layer for layer in layers if not 0 <= layer < target.layers]):
        raise UsageError(f"target_layers: {wrong[0]}: need 0 to {target.layers - 1}")


def chosen_mask_token(token: int, target: TargetSizes, frequencies: Frequencies) -> int:
    """Return the token that stands for what is to be drafted. Raises UsageError for one that the target has not."""
    if token >= target.vocab:
        raise UsageError(f"mask_token={token}: need {RAREST} to {target.vocab - 1}")
    return int(frequencies().argmin()) if token == RAREST else token
