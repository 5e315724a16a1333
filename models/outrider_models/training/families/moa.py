"""Training of Mixture of Attentions (arXiv 2410.03804, 3.3; details of huawei-noah/HEBO, branch mixture-of-attentions).

T-step bounded mask: in a reply the drafter gets the target's features only every n tokens, n drawn for each row, so
that it learns to draft on with old ones. The loss is 0.1 cross-entropy against the target's distribution + 1.0 smooth
L1 on the features; with TLI N > 0 half of the latter at the last hidden state, half at the state that enters layer
L - N.

Staircase (from the repository, not the paper): in the first half of the run SA sees only the tokens since the last
features, in all rows at first, then in fewer and fewer.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt
from torch import Tensor

from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.checkpoints.options import DrafterOptions
from outrider_drafters.families.moa.network import MoA, MoASizes
from outrider_drafters.readers.config import read_config
from outrider_models.training.core.family import TrainableFamily, divisor
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    NetworkDrafter,
    TargetFacts,
    TeacherOutput,
    TeacherRequest,
)
from outrider_models.training.core.losses import PAPER, Losses, TargetLabels, compare, feature_distance, rms
from outrider_models.training.core.rates import Length, Schedule
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class MoaShape:
    """Sizes of MoA's three layers; widths follow from the target."""

    layer_heads: int
    layer_kv_heads: int
    layer_intermediate: int
    self_kv_heads: int
    self_intermediate: int
    cross_kv_heads: int
    cross_intermediate: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """MoA's bounded mask: numbers of tokens that the drafter goes without new features."""

    shortest: int
    longest: int
    blind_share: float  # share of samples that get no features after a random position

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise UsageError(f"blocks: shortest={self.shortest}, longest={self.longest}: need 1 <= shortest <= longest")


@dataclass(frozen=True, slots=True)
class MoaSettings:
    shape: MoaShape
    blocks: Blocks
    losses: Losses
    tli: NonNegativeInt  # target layers that run on the client (paper 3.2)
    lsa: bool  # false: the paper's ablation with the target's last hidden state instead of its K/V
    staircase: bool
    draft_vocab: NonNegativeInt  # tokens that it drafts, the most frequent ones; 0: all


class TrainableMoa(NetworkDrafter):
    network: MoA

    def __init__(self, settings: MoaSettings, target: TargetFacts, frequencies: Frequencies) -> None:
        if settings.tli > target.sizes.layers:
            raise UsageError(f"tli={settings.tli}: the target has {target.sizes.layers} layers")
        super().__init__(MoA(_sizes(settings, target)), target, frequencies, settings.draft_vocab)
        self._settings = settings
        entering = (-1 - settings.tli,) if settings.tli else ()
        self.teacher_request = TeacherRequest(hidden=(-1, *entering), kv=settings.lsa, last_layers=settings.tli)
        self.options = DrafterOptions(tli=settings.tli)

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        mask, hidden = batch.loss_mask, target.hidden[-1]
        drafted, entering_distance = self._drafted(batch, target, progress)
        drafted_hidden, target_hidden = drafted[mask], hidden[mask]
        labels = TargetLabels(target, mask)
        compared = compare(drafted_hidden, target.lm_head, None, labels, labels.ahead(0))
        losses = self._settings.losses
        feature = feature_distance(drafted_hidden, target_hidden, target.feature_scale if losses.in_units else 1.0)
        if entering_distance is not None:
            feature = 0.5 * feature + 0.5 * entering_distance
        total = losses.divergence * compared.total + losses.feature * feature.sum()
        return LossOutput(total, compared.loss, compared.hits, mask.nonzero()[:, 0])

    def _drafted(self, batch: Batch, target: TeacherOutput, progress: float) -> tuple[Tensor, Tensor | None]:
        """Return drafted hidden states [B, T, E]; with TLI also the distance [n] of what enters the last layers."""
        starts = sync_points(batch.loss_mask, self._settings.blocks)
        stairs = self._stairs(len(starts), progress).to(starts.device) if self._settings.staircase else None
        embeds = F.embedding(batch.tokens, target.embed)
        activations = target.packed_kv if self._settings.lsa else target.hidden[-1]
        assert activations is not None
        drafted = self.network.forward_train(embeds, activations, starts, stairs)
        if not self._settings.tli:
            return drafted, None
        assert target.last_layers is not None
        entering = target.hidden[-1 - self._settings.tli]
        finished = target.last_layers.forward_train(drafted, entering, starts)
        wanted = entering[batch.loss_mask]
        unit = rms(wanted) if self._settings.losses.in_units else 1.0
        return finished.hidden, feature_distance(finished.entering[batch.loss_mask], wanted, unit)

    def _stairs(self, rows: int, progress: float) -> Tensor:  # [rows] bool
        return torch.rand(rows) < 1 - 2 * progress if self.training else torch.zeros(rows, dtype=torch.bool)


def sync_points(predicts_reply: Tensor, blocks: Blocks) -> Tensor:
    """Draw start(i) [rows, length] int64, the last position whose K/V query i may see.

    predicts_reply [rows, length] bool: the token after position i belongs to a reply. Prompt positions always sync; in
    replies every n-th position does, n drawn for each row (T-step bounded mask, paper 3.3). In a blind_share of the
    rows no reply position syncs after a random one, as when the link dies there.
    """
    rows, length = predicts_reply.shape
    device = predicts_reply.device
    positions = torch.arange(length, device=device)
    is_reply = F.pad(predicts_reply, (1, 0))[:, :-1]
    # Drawn on the CPU and moved: a GPU's generator gives other numbers for the same seed.
    every = torch.randint(blocks.shortest, blocks.longest + 1, (rows, 1)).to(device)
    # A share of the reply; 2 is beyond all of it: these rows never lose their features.
    dies_at = torch.rand(rows, 1).where(torch.rand(rows, 1) < blocks.blind_share, torch.tensor(2.0))
    spoken = is_reply.cumsum(1) / is_reply.sum(1, keepdim=True).clamp(min=1)
    syncs = ~is_reply | ((positions % every == 0) & (spoken <= dies_at.to(device)))
    return torch.where(syncs, positions, 0).cummax(1).values


def default_shape(target: TargetFacts) -> MoaShape:
    """Scale the paper's Table 6 for Llama-3-8B (E = 4096, 32 heads, 2 E_kv = 2048) to the target."""
    heads, hidden, packed = target.sizes.heads, target.sizes.hidden, target.sizes.packed_kv
    layer_heads = divisor(heads, packed // 2)  # RoPE needs heads of an even width
    return MoaShape(
        layer_heads, layer_kv_heads=divisor(layer_heads // 2, layer_heads), layer_intermediate=3 * packed,
        self_kv_heads=divisor(heads // 8, heads), self_intermediate=hidden // 8,
        cross_kv_heads=divisor(heads // 4, heads), cross_intermediate=hidden * 7 // 4,
    )  # fmt: skip


def _sizes(settings: MoaSettings, target: TargetFacts) -> MoASizes:
    shape, sizes, packed = settings.shape, target.sizes, target.sizes.packed_kv
    if settings.lsa and packed % shape.layer_heads:
        raise UsageError(f"layer_heads={shape.layer_heads}: need a divisor of {packed}, the width of LSA")
    numbers, bias = (sizes.rope_theta, sizes.eps), sizes.model_type == "qwen2"  # SA and LSA are layers of its kind
    heads, dim, scaling = sizes.heads, sizes.head_dim, rope_scaling(read_config(target.directory))
    sa = BlockShape(sizes.hidden, heads, shape.self_kv_heads, dim, shape.self_intermediate, *numbers, bias)
    ca = BlockShape(sizes.hidden, heads, shape.cross_kv_heads, dim, shape.cross_intermediate, *numbers)
    lsa = shape.layer_heads, shape.layer_kv_heads, packed // shape.layer_heads, shape.layer_intermediate
    mixed = BlockShape(packed, *lsa, *numbers, bias) if settings.lsa else None
    return MoASizes(replace(sa, rope_scaling=scaling), ca, mixed, settings.tli)


FAMILY = TrainableFamily(
    name="moa",
    settings=MoaSettings,
    defaults=lambda target: MoaSettings(
        default_shape(target), Blocks(5, 15, blind_share=0.0), PAPER, tli=0, lsa=True, staircase=False, draft_vocab=0
    ),
    make_drafter=TrainableMoa,
    schedule=Schedule(peak=6e-4, warmup_updates=50, decay="linear", last=3e-5, decay_epochs=1.0),
    length=Length(batch=32, epochs=30),
)
