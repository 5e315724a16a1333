"""Training of P-EAGLE (arXiv 2602.01469; numbers of vllm-project/speculators, models/peagle): all depths in one pass.

Depth 0 is EAGLE-3's row of every token. At depth d a row of the mask stands d positions behind such a row, its anchor,
and aims at the target's distribution there. Of a reply's n tokens depth d keeps n r^d, drawn anew in every pass from
those whose masks of lesser depth are kept (COD sampling). All rows weigh the same, so a depth weighs as it is kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.families.eagle3.layout import canonical, default_layers
from outrider_drafters.families.peagle.family import MASK_TOKENS, NUM_DRAFTS
from outrider_drafters.families.peagle.network import PEagle, PEagleSizes
from outrider_drafters.families.shared_layout import T2D, mask_token
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    TargetFacts,
    TeacherOutput,
    TeacherRequest,
)
from outrider_models.training.core.losses import TargetLabels, compare
from outrider_models.training.core.rates import Length, Schedule
from outrider_models.training.core.shapes import RAREST, LayerShape, MaskToken, check_target_layers, chosen_mask_token
from outrider_models.training.families.eagle3 import EagleHead, head_sizes


@dataclass(frozen=True, slots=True)
class DepthSettings:
    count: Annotated[int, Field(ge=2)]  # tokens that a pass drafts, depth 0 counted
    ratio: Annotated[float, Field(gt=0, le=1)]  # depth d keeps ratio^d of a reply's tokens,
    least: Annotated[float, Field(ge=0, le=1)]  # or this share, if that is more


@dataclass(frozen=True, slots=True)
class PEagleSettings:
    shape: LayerShape
    layers: PositiveInt
    draft_vocab: PositiveInt
    target_layers: tuple[int, ...]  # layers whose input it takes, as indices of Hugging Face's hidden_states
    mask_token: MaskToken  # or RAREST
    own_embedding: bool  # train a copy of the target's embedding, in which the mask has a row
    depths: DepthSettings

    def __post_init__(self) -> None:
        check_target_layers(self.target_layers)


class TrainablePEagle(EagleHead):
    untrained_tensors = frozenset({T2D})
    network: PEagle

    def __init__(self, settings: PEagleSettings, target: TargetFacts, frequencies: Frequencies) -> None:
        sizes, layers = target.sizes, tuple(sorted(settings.target_layers))  # files of this layout are read so
        eagle = head_sizes(settings.shape, settings.draft_vocab, layers, sizes.rope_theta, target)
        eagle = replace(eagle, own_embedding=settings.own_embedding, windows=(None,) * settings.layers)
        mask = chosen_mask_token(settings.mask_token, sizes, frequencies)
        shape = (1, 1, len(layers) * sizes.hidden)
        network = PEagle(PEagleSizes(eagle, mask, mask_shape=shape, num_drafts=settings.depths.count))
        super().__init__(network, target, frequencies)
        self._depths = settings.depths
        nn.init.normal_(self.network.mask_hidden)  # of zero the norm behind fc would have gradients without bounds
        if settings.own_embedding:
            self.start_request = TeacherRequest()

    @torch.no_grad()
    def init_from_examples(self, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
        """Take over the target's embedding."""
        assert self.network.embed_tokens is not None
        _, target = next(iter(examples))
        self.network.embed_tokens.weight.copy_(target.embed)

    def load_weights(self, files: DrafterFiles) -> None:
        super().load_weights(files)
        # Those weights know this token as the mask; that of other data may be another.
        self.network.mask_token = mask_token(canonical(files), self._target_sizes, MASK_TOKENS)

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        network, tokens = self.network, batch.tokens[:, 1:]
        # Row t predicts token t + 2, as the target's position t + 1 does.
        anchors, depths = sample_masks(batch.loss_mask[:, 1:], self._depths)
        embed = target.embed if network.embed_tokens is None else network.embed_tokens.weight
        states = torch.cat([target.hidden[layer] for layer in network.sizes.target_layers], dim=-1)
        hidden = network.forward_depths(
            F.embedding(tokens, embed), states[:, :-1], embed[network.mask_token], anchors, depths
        )
        of_masks = (anchors + depths + 1).masked_fill(anchors < 0, batch.tokens.shape[1])
        of_text = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) + 1
        labels = TargetLabels(target, batch.loss_mask, shared=True)
        trained, numbers = labels.at(torch.cat((of_text, of_masks), dim=1))
        assert network.lm_head is not None
        compared = compare(hidden[trained], network.lm_head.weight, None, labels, numbers)
        first = trained.nonzero()[:, 1] < tokens.shape[1]
        return LossOutput(compared.total, compared.loss[first], compared.hits[first], trained.nonzero()[first, 0])


def sample_masks(can: Tensor, depths: DepthSettings) -> tuple[Tensor, Tensor]:
    """Draw mask rows for the rows `can` [B, R] bool: anchors, -1 to fill up, and depths, each [B, M] int64."""
    counts, rows = can.sum(1, keepdim=True), can.shape[1]
    # By the position where a mask stands: its anchor, which need not be trained, is `depth` before.
    candidates, kept = can.index_fill(1, torch.tensor([0], device=can.device), False), list[Tensor]()
    for depth in range(1, depths.count):
        most = (counts * max(depths.ratio**depth, depths.least)).int()
        order = torch.rand(can.shape, device=can.device).masked_fill(~candidates, 2.0).argsort(1).argsort(1)
        kept.append(candidates & (order < most))
        candidates = F.pad(kept[-1][:, :-1], (1, 0)) & can
    drawn = torch.cat(kept, dim=1)
    places = drawn.int().argsort(dim=1, descending=True, stable=True)[:, : max(1, int(drawn.sum(1).max()))]
    made = places // rows + 1
    return (places % rows - made).masked_fill(~drawn.gather(1, places), -1), made


FAMILY = TrainableFamily(
    name="peagle",
    settings=PEagleSettings,
    defaults=lambda target: PEagleSettings(
        LayerShape.like(target), layers=4, draft_vocab=min(32000, target.sizes.vocab),
        target_layers=default_layers(target.sizes.layers), mask_token=RAREST, own_embedding=True,
        depths=DepthSettings(count=NUM_DRAFTS, ratio=0.7, least=0.2),
    ),
    make_drafter=TrainablePEagle,
    schedule=Schedule(peak=6e-4, warmup_updates=1000, decay="cosine", weight_decay=0.01),
    length=Length(batch=16, epochs=5),
)  # fmt: skip
