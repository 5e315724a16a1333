"""The interface between a frozen target and a drafter in training. Knows no family."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.checkpoints.draft_vocabulary import write_draft_vocab
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DrafterOptions
from outrider_drafters.checkpoints.target_weights import TargetSizes

PADDING = -100  # as in Hugging Face's labels


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Right-padded rows of tokens, and the mask of those that are trained."""

    tokens: Tensor  # [B, T] int64
    labels: Tensor  # [B, T] int64: the token after position i, PADDING after the last
    loss_mask: Tensor  # [B, T] bool: the label belongs to a reply, so its prediction is trained
    places: tuple[int, ...] = ()  # each row's first among served features


@dataclass(frozen=True, slots=True)
class TeacherRequest:
    """The parts of the target's output that a family needs."""

    hidden: tuple[int, ...] = (-1,)  # hidden states by Hugging Face's index; -1: after the final norm
    kv: bool = False  # keys and values of all layers
    last_layers: int = 0  # how many last layers the drafter runs on its own states


@dataclass(frozen=True, slots=True, eq=False)
class TeacherOutput:
    """The target's output for a batch, and the weights that drafters borrow from it. No gradient flows here."""

    embed: Tensor  # [V, E]
    lm_head: Tensor  # [Vd, E]: rows of the draft vocabulary
    feature_scale: Tensor  # []: roughly the rms of its last hidden states, from its final norm
    hidden: Mapping[int, Tensor]  # each [B, T, E]
    packed_kv: Tensor | None = None  # [B, T, L, 2 E_kv]: K, post-RoPE, and V of all layers as MoA packs them
    last_layers: LastLayers | None = None
    draft_tokens: Tensor | None = None  # [Vd] int64: the tokens of lm_head's rows; None: all
    likeliest: Tensor | None = None  # [B, T] int64: the target's likeliest tokens, where trained; None: see lm_head


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """A drafter's loss on a batch, as sums: only the trainer knows how many positions the whole update has."""

    total: Tensor  # []: all terms, weighted, summed over the masked-in positions
    main: Tensor  # [n] the main term of the first drafted token, without gradient
    hits: Tensor  # [n] bool: the drafter's likeliest token is the target's
    rows: Tensor  # [n] int64: row of the batch, as a mask's nonzero() has it first


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """Properties of the target that a family's sizes follow from."""

    directory: Path
    sizes: TargetSizes
    mlp: int  # width of its MLP


Frequencies = Callable[[], Tensor]  # counts [V] int64 of each token in replies


class TrainableDrafter(nn.Module, ABC):
    """A drafter in training: its network and its loss."""

    network: nn.Module
    teacher_request = TeacherRequest()
    options = DrafterOptions()  # options that the exported files must be loaded with
    untrained_tensors: frozenset[str] = frozenset()  # tensors of published files that no run trains
    layout_has_draft_vocab = False
    draft_tokens: Tensor | None = None  # [Vd] int64: all that it drafts; None: every token
    start_request: TeacherRequest | None = None  # of the examples that it starts from; None: it needs none

    def limited_to(self, count: int, frequencies: Frequencies, vocab: int) -> Self:
        """Let it draft the `count` most frequent tokens alone; 0: all."""
        if 0 < count < vocab:
            self.draft_tokens = most_frequent(frequencies(), count)
        return self

    def init_from_lm_head(self, lm_head: Tensor) -> None:  # most families start from random weights alone
        """Initialize from the target's lm_head [V, E], where the family does so; called once, before training."""

    def init_from_examples(self, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
        """Initialize from texts and what the target makes of them, for drafters with a `start_request`."""

    def write(self, directory: Path) -> None:
        """Write the family's published layout, and the draft vocabulary if the layout has no place for it."""
        self.export(directory)
        if self.draft_tokens is not None and not self.layout_has_draft_vocab:
            write_draft_vocab(directory, self.draft_tokens.tolist())

    def load_weights(self, files: DrafterFiles) -> None:
        """Load a drafter of this family and these sizes. Raises UsageError."""
        self.network.load_state_dict(files.tensors_for(self.network, self.untrained_tensors))

    # The whole loss is computed inside forward: DistributedDataParallel synchronizes gradients around that one call.
    @abstractmethod
    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        """Compute the loss; `progress` is the share of the run that is done."""

    @abstractmethod
    def export(self, directory: Path) -> None:
        """Write the family's published layout, in bfloat16."""


class NetworkDrafter(TrainableDrafter):
    """The base of Outrider's families: its network exports itself, and drafts `draft_vocab` tokens alone; 0: all."""

    export_details: Mapping[str, Any] = {}  # Any: what else the network's `export` takes, by name

    def __init__(self, network: nn.Module, target: TargetFacts, frequencies: Frequencies, draft_vocab: int = 0) -> None:
        super().__init__()
        self.network, self._target_sizes = network, target.sizes
        self.limited_to(draft_vocab, frequencies, target.sizes.vocab)

    def export(self, directory: Path) -> None:
        network = cast(Any, self.network)  # Any: torch shows no methods of a module's own
        network.export(directory, self._target_sizes, torch.bfloat16, **self.export_details)


def most_frequent(frequencies: Tensor, count: int) -> Tensor:
    """Return the ids [count] of the largest of [V] counts, the largest first; of equal counts, the lower id first."""
    # Stable, so that equal counts give the same vocabulary on every device.
    order: Tensor = frequencies.sort(descending=True, stable=True).indices
    return order[:count]


def chosen_rows(rows: Tensor, draft_tokens: Tensor | None) -> Tensor:
    """Return the draft vocabulary's rows of an output [V, ...]."""
    return rows if draft_tokens is None else rows[draft_tokens]
