"""Training of EAGLE-3 (arXiv 2503.01840; numbers of SafeAILab/EAGLE traineagle3): training-time test over steps.

Step j takes the drafter's own output of step j - 1 and aims at the target's distribution over the draft vocabulary;
there is no loss on features. Steps weigh 0.8^j. Positions whose likeliest token cannot be drafted have no loss.

The draft vocabulary holds the most frequent tokens of the replies; the head starts from their rows of the lm_head.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.families.eagle3.layout import EMBEDDING, T2D, canonical
from outrider_drafters.families.eagle3.network import Eagle3
from outrider_drafters.families.eagle3.sizes import Eagle3Sizes
from outrider_drafters.families.eagle3.tap_layers import default_layers
from outrider_models.core.tables import need_at_least
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    TargetFacts,
    TeacherOutput,
    TeacherRequest,
    TrainableDrafter,
    rows_of,
)
from outrider_models.training.core.losses import HeadDecay, compare, linear, soft_cross_entropy
from outrider_models.training.core.rates import Length, Schedule
from outrider_models.training.families.eagle2 import EagleShape, default_shape
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Eagle3Settings:
    shape: EagleShape
    draft_vocab: int
    target_layers: tuple[int, ...]  # layers whose input it takes, as indices of Hugging Face's hidden_states
    steps: HeadDecay
    rope_theta: float

    def __post_init__(self) -> None:
        need_at_least(self, 1, "draft_vocab")
        if not self.target_layers or len(set(self.target_layers)) != len(self.target_layers):
            raise UsageError(f"target_layers={list(self.target_layers)}: need at least one, none twice")


class TrainableEagle3(TrainableDrafter):
    draft_tokens: Tensor
    covered: Tensor  # [V] bool: can be drafted
    untrained_tensors = frozenset({EMBEDDING, T2D})

    def __init__(self, settings: Eagle3Settings, target: TargetFacts, frequencies: Frequencies) -> None:
        super().__init__()
        self._settings, self._target_sizes = settings, target.sizes
        self.teacher_request = TeacherRequest(hidden=(-1, *settings.target_layers))
        self.network: Eagle3 = Eagle3(_sizes(settings, target))
        vocab = target.sizes.vocab
        chosen = most_frequent(frequencies(), settings.draft_vocab) if settings.draft_vocab < vocab else None
        if chosen is not None:
            self.network.set_draft_tokens(chosen)
        self._cover(torch.arange(vocab) if chosen is None else chosen)

    def init_from_lm_head(self, lm_head: Tensor) -> None:
        assert self.network.lm_head is not None
        with torch.no_grad():
            self.network.lm_head.weight.copy_(lm_head[self.draft_tokens.to(lm_head.device)])

    def load_weights(self, files: DrafterFiles) -> None:
        # The draft vocabulary comes with the weights; that of the data's replies would not fit the head's rows.
        super().load_weights(canonical(files))
        if (chosen := self.network.draft_tokens) is not None:
            self._cover(chosen)

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        embeds = F.embedding(batch.tokens[:, 1:], target.embed)
        states = torch.cat([target.hidden[layer] for layer in self._settings.target_layers], dim=-1)
        count = min(self._settings.steps.count, embeds.shape[1])
        steps = self.network.forward_train(embeds, self.network.fuse(states[:, :-1]), count)
        outputs = [self._loss_output(step.logits, number, batch, target) for number, step in enumerate(steps)]
        weighted = [weight * one.total for weight, one in zip(self._settings.steps.weights, outputs, strict=False)]
        return LossOutput(torch.stack(weighted).sum(), outputs[0].main, outputs[0].hits, outputs[0].rows)

    def export(self, directory: Path) -> None:
        """Write SafeAILab's layout with d2t and t2d, without a copy of the target's embedding."""
        self.network.export(directory, self._target_sizes, torch.bfloat16)

    def _cover(self, tokens: Tensor) -> None:
        # Not persistent: the published files hold the same information as d2t and t2d.
        self.register_buffer("draft_tokens", tokens, persistent=False)
        covered = torch.zeros(self._target_sizes.vocab, dtype=torch.bool, device=tokens.device)
        covered[tokens] = True
        self.register_buffer("covered", covered, persistent=False)

    def _loss_output(self, logits: Tensor, step: int, batch: Batch, target: TeacherOutput) -> LossOutput:
        """Row t of a step predicts token t + 2 + step, as the target's position t + 1 + step does."""
        ahead = step + 1
        mask = batch.loss_mask[:, ahead:]
        drafted_logits = logits[:, : mask.shape[1]][mask]
        target_hidden = target.hidden[-1][:, ahead:][mask]
        compared = compare(
            _as_it_is,
            drafted_logits,
            linear(target.lm_head),
            target_hidden,
            self._loss,
            self._target_sizes.vocab,
            self.draft_tokens,
        )
        return LossOutput(compared.loss.sum(), compared.loss.detach(), compared.hits, rows_of(mask))

    def _loss(self, logits: Tensor, wanted: Tensor) -> Tensor:
        learnable = self.covered[wanted.argmax(-1)]
        return soft_cross_entropy(logits, wanted[:, self.draft_tokens]) * learnable


def most_frequent(frequencies: Tensor, count: int) -> Tensor:
    """Return the ids [count] of the largest of [V] counts, ascending; of equal counts, the lower id."""
    # Stable, so that equal counts give the same vocabulary on every device.
    order: Tensor = frequencies.sort(descending=True, stable=True).indices
    return order[:count].sort().values


def make_drafter(settings: Eagle3Settings, target: TargetFacts, frequencies: Frequencies) -> TrainableDrafter:
    return TrainableEagle3(settings, target, frequencies)


def _as_it_is(logits: Tensor) -> Tensor:
    return logits


def _sizes(settings: Eagle3Settings, target: TargetFacts) -> Eagle3Sizes:
    sizes = target.sizes
    if wrong := [layer for layer in settings.target_layers if not 0 <= layer < sizes.layers]:
        raise UsageError(f"target_layers: {wrong[0]}: need 0 to {sizes.layers - 1}")
    return Eagle3Sizes(
        block=BlockShape(
            width=sizes.hidden,
            heads=sizes.heads,
            kv_heads=settings.shape.kv_heads,
            head_dim=sizes.head_dim,
            mlp=settings.shape.intermediate,
            rope_theta=settings.rope_theta,
            eps=sizes.eps,
        ),
        vocab=sizes.vocab,
        draft_vocab=min(settings.draft_vocab, sizes.vocab),
        target_hidden=sizes.hidden,
        target_layers=settings.target_layers,
    )


FAMILY = TrainableFamily(
    name="eagle3",
    settings=Eagle3Settings,
    defaults=lambda target: Eagle3Settings(
        shape=default_shape(target),
        draft_vocab=min(32000, target.sizes.vocab),
        target_layers=default_layers(target.sizes.layers),
        steps=HeadDecay(count=7, decay=0.8),
        rope_theta=10000.0,  # of the published heads, not of the target
    ),
    make_drafter=make_drafter,
    schedule=Schedule(
        peak=5e-5, last=0.0, warmup_updates=12000, decay="linear", decay_epochs=0,
        beta1=0.9, beta2=0.95, weight_decay=0.0, clip_norm=0.5,
    ),
    length=Length(batch=16, epochs=40),
)  # fmt: skip
