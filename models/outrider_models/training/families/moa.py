"""Mixture of Attentions (arXiv 2410.03804, 3.3; details of huawei-noah/HEBO, branch mixture-of-attentions).

T-step bounded mask: in a reply the target's news reach the drafter every n tokens only, n drawn for each row, so that it
learns to go on with old ones. 0.1 cross-entropy against the target's distribution + 1.0 smooth L1 on the features.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.moa import MoA, MoASizes, pack_kv
from outrider_models.training.families.family import Trainable, divisor
from outrider_models.training.lesson import Frequencies, Marks, Needs, Pupil, Said, TargetFacts, Text, rows_of
from outrider_models.training.losses import PAPER, Losses, compare, feature_distance, linear, soft_cross_entropy
from outrider_models.training.rates import Length, Schedule
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class MoaShape:
    """Sizes of MoA's three layers; widths follow from the target."""

    layer_kv_heads: int
    layer_intermediate: int
    self_kv_heads: int
    self_intermediate: int
    cross_kv_heads: int
    cross_intermediate: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """MoA's bounded mask: how many tokens the drafter goes without news from the target."""

    shortest: int
    longest: int
    blind_share: float  # of samples whose last block reaches from a drawn place to the end

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise UsageError(f"blocks: shortest={self.shortest}, longest={self.longest}: need 1 <= shortest <= longest")


@dataclass(frozen=True, slots=True)
class MoaSettings:
    shape: MoaShape
    blocks: Blocks
    losses: Losses


class MoaPupil(Pupil):
    needs = Needs(kv=True)

    def __init__(self, settings: MoaSettings, target: TargetFacts) -> None:
        super().__init__()
        self._settings, self._target = settings, target.sizes
        self.network: MoA = MoA(_sizes(settings.shape, target))

    def forward(self, text: Text, said: Said, progress: float) -> Marks:
        assert said.keys is not None
        assert said.values is not None
        losses, counts = self._settings.losses, text.counts
        starts = sync_points(counts, self._settings.blocks)
        packed_kv = pack_kv(said.keys, said.values)
        drafted = self.network.forward_train(F.embedding(text.tokens, said.embed), packed_kv, starts)
        ours, theirs = drafted[counts], said.hidden[-1][counts]
        head = linear(said.lm_head)
        compared = compare(head, ours, head, theirs, soft_cross_entropy, self._target.vocab)
        feature = feature_distance(ours, theirs, said.unit if losses.in_units else 1.0)
        total = (losses.divergence * compared.loss + losses.feature * feature).sum()
        return Marks(total, compared.loss.detach(), compared.hits, rows_of(counts))

    def export(self, directory: Path) -> None:
        """The published training layout."""
        self.network.export(directory, self._target, torch.bfloat16)


def sync_points(predicts_reply: Tensor, blocks: Blocks) -> Tensor:
    """start(i) [rows, length] int64: the last position whose K/V query i may see. Draws from torch's generator.

    predicts_reply [rows, length] bool: position i's successor belongs to a reply. Prompt positions always sync; in
    replies every n-th position does, n drawn for each row (T-step bounded mask, paper 3.3). In a blind_share of the
    rows no reply position after a drawn place does: what it is like when the link dies there.
    """
    rows, length = predicts_reply.shape
    device = predicts_reply.device
    positions = torch.arange(length, device=device)
    is_reply = F.pad(predicts_reply, (1, 0))[:, :-1]
    every = torch.randint(blocks.shortest, blocks.longest + 1, (rows, 1)).to(device)
    dies_at = torch.rand(rows, 1).where(
        torch.rand(rows, 1) < blocks.blind_share, torch.tensor(2.0)
    )  # share of the reply
    spoken = is_reply.cumsum(1) / is_reply.sum(1, keepdim=True).clamp(min=1)
    syncs = ~is_reply | ((positions % every == 0) & (spoken <= dies_at.to(device)))
    return torch.where(syncs, positions, 0).cummax(1).values


def default_shape(target: TargetFacts) -> MoaShape:
    """The paper's Table 6 for Llama-3-8B (E = 4096, 32 heads, 2 E_kv = 2048), in proportion for other targets."""
    heads, hidden, packed = target.sizes.heads, target.sizes.hidden, target.sizes.packed_kv
    return MoaShape(
        layer_kv_heads=divisor(heads // 2, heads),
        layer_intermediate=3 * packed,
        self_kv_heads=divisor(heads // 8, heads),
        self_intermediate=hidden // 8,
        cross_kv_heads=divisor(heads // 4, heads),
        cross_intermediate=hidden * 7 // 4,
    )


def make_pupil(settings: MoaSettings, target: TargetFacts, frequencies: Frequencies) -> Pupil:
    return MoaPupil(settings, target)


def _sizes(shape: MoaShape, target: TargetFacts) -> MoASizes:
    sizes = target.sizes
    return MoASizes(
        hidden=sizes.hidden,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        packed_kv=sizes.packed_kv,
        lsa_kv_heads=shape.layer_kv_heads,
        lsa_mlp=shape.layer_intermediate,
        sa_kv_heads=shape.self_kv_heads,
        sa_mlp=shape.self_intermediate,
        ca_kv_heads=shape.cross_kv_heads,
        ca_mlp=shape.cross_intermediate,
        rope_theta=sizes.rope_theta,
        eps=sizes.eps,
    )


TRAINABLE = Trainable(
    name="moa",
    settings=MoaSettings,
    defaults=lambda target: MoaSettings(default_shape(target), Blocks(5, 15, blind_share=0.0), PAPER),
    pupil=make_pupil,
    schedule=Schedule(
        peak=6e-4, last=3e-5, warmup_updates=50, decay="linear", decay_epochs=1.0,
        beta1=0.9, beta2=0.95, weight_decay=0.0, clip_norm=1.0,
    ),
    length=Length(batch=32, epochs=30),
)  # fmt: skip
