"""What passes between a frozen target and a drafter in training. Knows no family."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterOptions
from outrider_drafters.checkpoints.target_weights import TargetSizes


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """Right-padded rows of tokens, and which of them teach."""

    tokens: Tensor  # [B, T] int64
    successors: Tensor  # [B, T] int64: the token after position i
    counts: Tensor  # [B, T] bool: that token belongs to a reply, so what predicts it is learnt


@dataclass(frozen=True, slots=True)
class Needs:
    """What a family wants to hear of the target: hidden states by Hugging Face's index (-1: after the final norm), and
    whether the keys and values of its layers; how many of its last layers are to be run on something else."""

    hidden: tuple[int, ...] = (-1,)
    kv: bool = False
    last_layers: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """What the target knows of a text, and the parts of it that drafters borrow. No gradient flows here."""

    embed: Tensor  # [V, E]
    lm_head: Tensor  # [V, E]
    unit: Tensor  # []: about the rms of its last hidden states, from its final norm
    hidden: Mapping[int, Tensor]  # each [B, T, E]
    keys: Tensor | None = None  # [B, L, kv_heads, T, head_dim], post-RoPE
    values: Tensor | None = None
    last_layers: LastLayers | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """What a drafter made of a text. Means are for who knows how many positions count over the whole update."""

    total: Tensor  # []: all terms, weighted, summed over the positions that count
    main: Tensor  # [n] the main term of the first drafted token, without gradient
    hits: Tensor  # [n] bool: its likeliest token is the target's
    rows: Tensor  # [n] int64: which row of the text


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a family's sizes follow from."""

    directory: Path
    sizes: TargetSizes
    mlp: int  # width of its MLP


Frequencies = Callable[[], Tensor]  # how often each token [V] int64 stands in replies


class Pupil(nn.Module, ABC):
    """A drafter in training: its network, and how it learns. `forward` is the whole lesson: what wraps it for several
    devices has to see one call."""

    network: nn.Module
    needs = Needs()
    options = DrafterOptions()  # with which the exported files are to be loaded
    also_stored: frozenset[str] = frozenset()  # tensors of published files that no run trains

    def start_from(self, lm_head: Tensor) -> None:  # most start from nothing
        """Take from the target's lm_head [V, E] what the family starts from; called once, before training."""

    def go_on_from(self, files: DrafterFiles) -> None:
        """Take the weights of a drafter of this family and these sizes instead. Raises UsageError."""
        self.network.load_state_dict(files.tensors_for(self.network, self.also_stored))

    @abstractmethod
    def forward(self, text: Text, said: Said, progress: float) -> Marks:
        """`progress` is the share of the run that is done."""

    @abstractmethod
    def export(self, directory: Path) -> None:
        """Write the family's published layout, in bfloat16."""


def rows_of(counts: Tensor) -> Tensor:  # [B, T] bool -> [n] int64
    """The row of each position that counts."""
    return counts.nonzero()[:, 0]
