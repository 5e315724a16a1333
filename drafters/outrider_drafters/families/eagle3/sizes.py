"""Sizes and switches of an EAGLE-3 head, and which of them fit together."""

from dataclasses import dataclass

from outrider_drafters.blocks.layers import BlockShape
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Eagle3Sizes:
    """Sizes and switches of a head. `block.width` is its own width H, `target_hidden` the target's Ht.

    target_layers: the hidden states it reads, by Hugging Face's index (the number of layers: the last one's output
    before the final norm); none: the last hidden state after it, and no fc. fc_norm: one norm for each of them;
    input_norm: one over all. own_embedding, own_head: in the file, not borrowed. windows: one a layer, how many rows a
    row sees, its own counted; None: all. Raises UsageError for what does not fit together.
    """

    block: BlockShape
    vocab: int
    draft_vocab: int
    target_hidden: int
    target_layers: tuple[int, ...]
    fc_bias: bool = False
    out_bias: bool = False
    fc_norm: bool = False
    input_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    own_head: bool = True
    windows: tuple[int | None, ...] = (None,)

    def __post_init__(self) -> None:
        same_width = self.hidden == self.target_hidden
        if not 1 <= self.draft_vocab <= self.vocab:
            raise UsageError(f"draft_vocab={self.draft_vocab}: need 1 to {self.vocab}, the target's vocabulary")
        if self.fc_norm and self.input_norm:
            raise UsageError("fc_norm and input_norm: a head has one or the other")
        if not self.target_layers and not same_width:
            raise UsageError(f"hidden size is {self.hidden}, the target's {self.target_hidden}, and there is no fc")
        if not self.own_head and not (same_width and self.draft_vocab == self.vocab):
            raise UsageError("lacks lm_head.weight, and the target's fits only a head of its width and vocabulary")
        if not self.own_embedding and not same_width:
            raise UsageError(
                f"hidden size is {self.hidden}, the target's {self.target_hidden}: the embedding must be the head's own"
            )

    @property
    def hidden(self) -> int:
        return self.block.width

    @property
    def layers(self) -> int:
        return len(self.windows)
