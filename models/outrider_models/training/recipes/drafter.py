"""A drafter of any family, trained on the replies of the generated corpus with a frozen target as teacher.

All families read the same batches in the same order; each family's module says what it sees and what it aims at.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import write_target_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_models.training.core.interfaces import Batch, LossOutput, TrainableDrafter
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.families import trainable_family
from outrider_models.training.recipes.data import GROUPS, LabeledBatch, collate, shard_batches
from outrider_models.training.recipes.probe import probe_samples
from outrider_models.training.recipes.recipe import DrafterRecipe
from outrider_models.training.recipes.trainer import mean_by_group


class DrafterTask:
    """A drafter, with random weights or those of another drafter, and its frozen target."""

    def __init__(self, recipe: DrafterRecipe, target_dir: Path, start: str | None = None) -> None:
        self.teacher = Teacher.load(target_dir, torch.float32)
        self.tokenizer = Tokenizer.from_file(str(target_dir / "tokenizer.json"))
        self._recipe = recipe
        # Before the network is made: its initial weights are random.
        torch.manual_seed(recipe.stream.seed)
        self.drafter: TrainableDrafter = trainable_family(recipe.family).make_drafter(
            recipe.settings, self.teacher.facts, self._frequencies
        )
        self.drafter.init_from_lm_head(self.teacher.lm_head)
        if start is not None:
            self.drafter.load_weights(DrafterFiles.open(DrafterSource(start)))

    @property
    def network(self) -> nn.Module:
        return self.drafter.network

    def forward(self, batch: LabeledBatch, progress: float = 0.0) -> LossOutput:
        """Run target and drafter over a batch."""
        text = Batch(batch.inputs, batch.labels, batch.weights == 1)
        output: LossOutput = self.drafter(text, self.teacher.run(text.tokens, self.drafter.teacher_request), progress)
        return output

    def loss(self, batch: LabeledBatch, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of all terms over the batch's weight, and the main term by group."""
        output = self.forward(batch, progress)
        groups = batch.groups[output.rows]
        return output.total / batch.total_weight, mean_by_group(output.main, groups, torch.ones_like(output.main))

    @torch.no_grad()
    def probe(self, samples: int) -> Mapping[str, str]:
        """Measure how often the first drafted token is the target's likeliest one, on held-out text."""
        batch = collate(self.tokenizer, probe_samples(samples), prompt_weight=0.0)
        # Noise and dropout of training would lower the share.
        self.drafter.eval()
        output = self.forward(batch)
        self.drafter.train()
        agreement = mean_by_group(output.hits.float(), batch.groups[output.rows], torch.ones_like(output.main))
        return {name: f"{share:.3f}" for name, share in zip(GROUPS, agreement.tolist(), strict=True)}

    def export(self, directory: Path) -> None:
        """Write the family's published layout, in bfloat16."""
        self.drafter.export(directory)
        write_target_fingerprint(directory, self.teacher.facts.directory)

    def _frequencies(self) -> Tensor:
        """Count tokens in the replies of the first shard."""
        counts = torch.zeros(self.teacher.facts.sizes.vocab, dtype=torch.int64)
        for batch in shard_batches(self._recipe.stream, self.tokenizer, 0):
            counts += torch.bincount(batch.labels[batch.weights == 1], minlength=len(counts))
        return counts
