"""Training of DFlash (arXiv 2602.06036, 4.2; its loss also in deepseek-ai/DeepSpec): many blocks of each text at once.

A block begins at an anchor, a token of a reply, with masks after it. It sees the target's features before the anchor
and itself. With `late`, some blocks lack the newest features, as drafts ahead of a verdict do: tokens stand for them.
Its slots k = 0, 1, ... predict the tokens after the anchor, as far as the reply goes, with weight exp(-k / gamma),
since a refused token takes those after it along. Anchors are drawn anew in every pass.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.families.dflash.family import LATE_ROWS
from outrider_drafters.families.dflash.layer_masks import LayerMask
from outrider_drafters.families.dflash.layout import canonical, read_sizes
from outrider_drafters.families.dflash.network import DFlash, DFlashSizes
from outrider_models.training.core.block_losses import BlockLabels, BlockLosses, SlotsCompared, compare_slots
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    NetworkDrafter,
    TargetFacts,
    TeacherOutput,
    TeacherRequest,
)
from outrider_models.training.core.rates import Length, Schedule
from outrider_models.training.core.shapes import RAREST, LayerShape, MaskToken, check_target_layers, chosen_mask_token

LATE_SHARE = 0.6  # of the blocks


@dataclass(frozen=True, slots=True)
class DFlashSettings:
    shape: LayerShape
    layers: PositiveInt
    target_layers: tuple[int, ...]  # as indices of Hugging Face's hidden_states
    block_size: int  # as published: with the root in DFlash, without it in DSpark
    mask_token: MaskToken  # or RAREST
    anchors: PositiveInt  # most blocks of a text
    late: NonNegativeInt  # most features that a block lacks before its anchor; 0: all blocks have all
    gamma: PositiveFloat  # slots weigh exp(-k / gamma)
    losses: BlockLosses
    draft_vocab: NonNegativeInt  # tokens that it drafts, the most frequent ones; 0: all

    def __post_init__(self) -> None:
        check_target_layers(self.target_layers)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedBlocks:
    """The blocks of a batch: A a text, of K slots each."""

    anchors: Tensor  # [B, A] int64
    states: Tensor  # [B, A, K, E] after the final norm
    trained: Tensor  # [B, A, K] bool: the slots with a loss
    scales: Tensor  # [B, A, K] float32: how much each counts


class TrainableBlocks(NetworkDrafter):
    """A drafter of blocks: DFlash's, and DSpark's on the same backbone."""

    network: DFlash

    def __init__(
        self, settings: DFlashSettings, target: TargetFacts, network: DFlash, frequencies: Frequencies, vocab: int = 0
    ) -> None:
        super().__init__(network, target, frequencies, vocab)
        self._settings = settings
        self.teacher_request = TeacherRequest(hidden=(-1, *settings.target_layers))

    def load_weights(self, files: DrafterFiles) -> None:
        files = canonical(files)
        super().load_weights(files)
        # Those weights know this token as the mask; that of other data may be another.
        mask_token = read_sizes(files, self._target_sizes).mask_token
        self.network.sizes = replace(self.network.sizes, mask_token=mask_token)

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        blocks, labels = self._blocks(batch, target), BlockLabels(batch, target, self._settings.losses)
        places = self._places(blocks.anchors)
        _, numbers = labels.target.at(places.masked_fill(~blocks.trained, batch.tokens.shape[1]).flatten(1))
        total, compared = self._compared(batch, blocks, labels, numbers)
        first = blocks.trained.nonzero()[:, 2] == 0
        return LossOutput(total, compared.loss[first], compared.hits[first], blocks.trained.nonzero()[first, 0])

    def _compared(
        self, batch: Batch, blocks: TrainedBlocks, labels: BlockLabels, numbers: Tensor
    ) -> tuple[Tensor, SlotsCompared]:
        """Return the loss of the trained slots, and the slots against their labels."""
        hidden = blocks.states[blocks.trained]
        none = hidden.new_empty(len(hidden), 0), hidden.new_empty(len(labels.lm_head), 0)
        compared = compare_slots(hidden, *none, blocks.scales[blocks.trained], labels, numbers)
        return compared.total, compared

    def _blocks(self, batch: Batch, target: TeacherOutput) -> TrainedBlocks:
        settings, sizes, length = self._settings, self.network.sizes, batch.tokens.shape[1]
        anchors, stands_for = sample_anchors(batch.loss_mask, settings.anchors)
        late, lacking = LATE_ROWS if settings.late else 0, sample_lacking(anchors, settings.late)
        before = (anchors.unsqueeze(-1) + torch.arange(-late, 1, device=anchors.device)).clamp(min=0)
        known = batch.tokens.gather(1, before.flatten(1)).view_as(before)
        tokens = F.pad(known, (0, sizes.block - 1), value=sizes.mask_token)
        context = self.network.context([target.hidden[tap] for tap in sizes.taps])
        states = self.network.forward_train(F.embedding(tokens, target.embed), context, anchors, lacking)
        places = self._places(anchors)
        inside = places.clamp(max=length - 1)
        in_reply = batch.loss_mask.gather(1, inside.flatten(1)).view_as(places) & (places == inside)
        # Up to the reply's end, not in the next one.
        trained = in_reply.cumprod(-1).bool() & (stands_for > 0).unsqueeze(-1)
        decay = torch.exp(-torch.arange(sizes.num_drafts, device=anchors.device) / settings.gamma)
        scales = stands_for.unsqueeze(-1) * decay / decay.sum()
        return TrainedBlocks(anchors, states[:, :, late + sizes.first_row :], trained, scales)

    def _places(self, anchors: Tensor) -> Tensor:
        """Return the position whose successor each slot predicts, [B, A, K] int64; it may lie past the end."""
        return anchors.unsqueeze(-1) + torch.arange(self.network.sizes.num_drafts, device=anchors.device)


def sample_anchors(loss_mask: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Draw anchors [B, A] in replies, at most `most` a text, and how many each stands for [B, A]; 0: it fills up."""
    can = loss_mask & F.pad(loss_mask[:, :-1], (1, 0))
    counts = can.sum(1, keepdim=True)
    drawn = torch.rand(can.shape, device=can.device).masked_fill(~can, 2.0).argsort(1)
    taken = counts.clamp(max=most)
    count = max(1, int(taken.max()))
    real = torch.arange(count, device=can.device) < taken
    anchors = drawn[:, :count].masked_fill(~real, 0)
    return anchors, real * counts / taken.clamp(min=1)


def sample_lacking(anchors: Tensor, most: int) -> Tensor:
    """Draw how many features before each anchor are lacking [B, A] int64: 1 to `most` for LATE_SHARE of them."""
    if not most:
        return torch.zeros_like(anchors)
    lacking = torch.randint_like(anchors, 1, most + 1)
    is_late = torch.rand(anchors.shape, device=anchors.device) < LATE_SHARE
    return torch.minimum(lacking * is_late, anchors)


def block_sizes(settings: DFlashSettings, target: TargetFacts, frequencies: Frequencies) -> DFlashSizes:
    """Return the network's sizes. Raises UsageError."""
    sizes = target.sizes
    check_target_layers(settings.target_layers, sizes)
    return DFlashSizes(
        shape=settings.shape.block(sizes, sizes.rope_theta, qk_norm=True),  # both layouts have Qwen3's layers
        layer_masks=(LayerMask(),) * settings.layers,
        taps=settings.target_layers,
        block=settings.block_size,
        mask_token=chosen_mask_token(settings.mask_token, sizes, frequencies),
        vocab=sizes.vocab,
        late=settings.late,
    )


def default_taps(layers: int) -> tuple[int, ...]:
    """Return five layers from the second to the last but two, evenly, as indices of hidden_states (paper, 4.1)."""
    first = min(2, layers - 1)
    last = max(first, layers - 2)
    return tuple(dict.fromkeys(round(first + number * (last - first) / 4) for number in range(5)))


def _make_drafter(settings: DFlashSettings, target: TargetFacts, frequencies: Frequencies) -> TrainableBlocks:
    network = DFlash(block_sizes(settings, target, frequencies))
    return TrainableBlocks(settings, target, network, frequencies, settings.draft_vocab)


FAMILY = TrainableFamily(
    name="dflash",
    settings=DFlashSettings,
    defaults=lambda target: DFlashSettings(
        LayerShape.like(target), layers=5, target_layers=default_taps(target.sizes.layers), block_size=16,
        mask_token=RAREST, anchors=512, late=0, gamma=7.0,
        losses=BlockLosses(text=1.0, divergence=0.0, variation=0.0), draft_vocab=0,
    ),
    make_drafter=_make_drafter,
    schedule=Schedule(peak=6e-4, warmup_updates=1000, decay="cosine"),
    length=Length(batch=64, epochs=6),
)  # fmt: skip
