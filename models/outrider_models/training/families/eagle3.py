"""Training of EAGLE-3 (arXiv 2503.01840; numbers of SafeAILab/EAGLE traineagle3): training-time test over steps.

Step j takes the drafter's own output of step j - 1 and aims at the target's distribution over the draft vocabulary;
there is no loss on features. Steps weigh 0.8^j. Positions whose likeliest token cannot be drafted have no loss.

The draft vocabulary holds the most frequent tokens of the replies; the head starts from their rows of the lm_head, and
with init=target the rest starts as the target's last layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.families.eagle3.layer import Eagle3Sizes
from outrider_drafters.families.eagle3.layout import canonical, default_layers
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_drafters.families.shared_layout import EMBEDDING, T2D
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    NetworkDrafter,
    TargetFacts,
    TeacherOutput,
    TeacherRequest,
    chosen_rows,
    most_frequent,
)
from outrider_models.training.core.losses import HeadDecay, TargetLabels, compare
from outrider_models.training.core.rates import Length, Schedule
from outrider_models.training.core.shapes import Init, LayerShape, check_target_layers
from outrider_models.training.families.eagle3_start import start_from_target, start_request


@dataclass(frozen=True, slots=True)
class Eagle3Settings:
    shape: LayerShape
    draft_vocab: PositiveInt
    target_layers: tuple[int, ...]  # layers whose input it takes, as indices of Hugging Face's hidden_states
    steps: HeadDecay
    rope_theta: float
    init: Init  # target: start as its last layer (eagle3_start.py)

    def __post_init__(self) -> None:
        check_target_layers(self.target_layers)


class EagleHead(NetworkDrafter):
    """EAGLE-3's network, which P-EAGLE trains too: its lm_head starts as the target's rows of the draft vocabulary."""

    untrained_tensors = frozenset({EMBEDDING, T2D})
    layout_has_draft_vocab = True
    network: Eagle3

    def __init__(self, network: Eagle3, target: TargetFacts, frequencies: Frequencies) -> None:
        super().__init__(network, target, frequencies)
        sizes = network.sizes
        self.teacher_request = TeacherRequest(hidden=(-1, *sizes.target_layers))
        if sizes.draft_vocab < sizes.vocab:
            # d2t can express rising ids alone.
            self.draft_tokens = most_frequent(frequencies(), sizes.draft_vocab).sort().values
            network.set_draft_tokens(self.draft_tokens)

    def init_from_lm_head(self, lm_head: Tensor) -> None:
        assert self.network.lm_head is not None
        self.network.lm_head.weight.data.copy_(chosen_rows(lm_head, self.draft_tokens))

    def load_weights(self, files: DrafterFiles) -> None:
        # The draft vocabulary comes with the weights; that of the data's replies would not fit the head's rows.
        super().load_weights(canonical(files))
        self.draft_tokens = self.network.draft_tokens


class TrainableEagle3(EagleHead):
    def __init__(self, settings: Eagle3Settings, target: TargetFacts, frequencies: Frequencies) -> None:
        sizes = head_sizes(settings.shape, settings.draft_vocab, settings.target_layers, settings.rope_theta, target)
        super().__init__(Eagle3(sizes), target, frequencies)
        self._settings, self.export_details = settings, {"steps": settings.steps.count}
        if settings.init == "target":
            self.start_request = start_request(settings.target_layers)

    def init_from_examples(self, examples: Iterable[tuple[Batch, TeacherOutput]]) -> None:
        start_from_target(self.network, examples)

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        embeds = F.embedding(batch.tokens[:, 1:], target.embed)
        states = torch.cat([target.hidden[layer] for layer in self._settings.target_layers], dim=-1)
        count = min(self._settings.steps.count, embeds.shape[1])
        rows = rows_that_teach(batch.loss_mask, count)
        steps = self.network.forward_train(embeds, self.network.fuse(states[:, :-1]), count, chosen=rows)
        labels = TargetLabels(target, batch.loss_mask, shared=True)
        # Row t of step j predicts token t + 2 + j, as the target's position t + 1 + j does.
        trained, numbers = zip(*(labels.at(rows + 1 + number) for number in range(count)), strict=True)
        drafted = [step.normed[mask] for step, mask in zip(steps, trained, strict=True)]
        weights = zip(self._settings.steps.weights, drafted, strict=False)
        scales = torch.cat([torch.full((len(part),), weight, device=part.device) for weight, part in weights])
        assert self.network.lm_head is not None
        compared = compare(torch.cat(drafted), self.network.lm_head.weight, None, labels, torch.cat(numbers), scales)
        first = len(drafted[0])
        return LossOutput(compared.total, compared.loss[:first], compared.hits[:first], trained[0].nonzero()[:, 0])


def rows_that_teach(loss_mask: Tensor, steps: int) -> Tensor:
    """Return rows [B, R] int64 that hold all those from which one of the steps predicts a trained token."""
    padded = F.pad(loss_mask[:, 1:], (0, steps - 1))
    needed = padded.unfold(1, steps, 1).any(-1)
    # Rows of the batch that need fewer are filled up with others, from which nothing trained is predicted.
    order = needed.int().argsort(dim=1, descending=True, stable=True)
    return order[:, : max(1, int(needed.sum(1).max()))]


def head_sizes(
    shape: LayerShape, draft_vocab: int, target_layers: tuple[int, ...], rope_theta: float, target: TargetFacts
) -> Eagle3Sizes:
    """Return the sizes of a head of one layer. Raises UsageError."""
    sizes = target.sizes
    check_target_layers(target_layers, sizes)
    return Eagle3Sizes(
        shape.block(sizes, rope_theta), sizes.vocab, draft_vocab=min(draft_vocab, sizes.vocab),
        target_hidden=sizes.hidden, target_layers=target_layers,
    )  # fmt: skip


FAMILY = TrainableFamily(
    name="eagle3",
    settings=Eagle3Settings,
    defaults=lambda target: Eagle3Settings(
        LayerShape.like(target), draft_vocab=min(32000, target.sizes.vocab),
        target_layers=default_layers(target.sizes.layers), steps=HeadDecay(count=7, decay=0.8), init="random",
        rope_theta=10000.0,  # of the published heads, not of the target
    ),
    make_drafter=TrainableEagle3,
    schedule=Schedule(peak=5e-5, warmup_updates=12000, decay="linear", clip_norm=0.5),
    length=Length(batch=16, epochs=40),
)  # fmt: skip
