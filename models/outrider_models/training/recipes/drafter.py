"""A drafter of any family on the generated corpus, taught by a frozen target on fixed text, reply positions only.

All families read the same batches in the same order; what each sees and aims at is said in its own file.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import mark_drafter
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_models.training.core.interfaces import Marks, Pupil, Text
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.families import trainable
from outrider_models.training.recipes.data import GROUPS, Batch, collate, shard_batches
from outrider_models.training.recipes.probe import probe_samples
from outrider_models.training.recipes.recipe import DrafterRecipe
from outrider_models.training.recipes.trainer import by_group


class DrafterTask:
    """A drafter, fresh or with the weights of another, beside its frozen target."""

    def __init__(self, recipe: DrafterRecipe, target_dir: Path, start: str | None = None) -> None:
        self.teacher = Teacher.load(target_dir, torch.float32)
        self.tokenizer = Tokenizer.from_file(str(target_dir / "tokenizer.json"))
        self._recipe = recipe
        torch.manual_seed(recipe.stream.seed)
        self.pupil: Pupil = trainable(recipe.family).pupil(recipe.settings, self.teacher.facts, self._frequencies)
        self.pupil.start_from(self.teacher.lm_head)
        if start is not None:
            self.pupil.go_on_from(DrafterFiles.open(DrafterSource(start)))

    @property
    def network(self) -> nn.Module:
        return self.pupil.network

    def lesson(self, batch: Batch, progress: float = 0.0) -> Marks:
        """Run target and drafter over a batch."""
        text = Text(batch.inputs, batch.labels, batch.weights == 1)
        marks: Marks = self.pupil(text, self.teacher.says(text.tokens, self.pupil.needs), progress)
        return marks

    def loss(self, batch: Batch, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """The weighted sum of all terms; by group, the main one."""
        marks = self.lesson(batch, progress)
        groups = batch.groups[marks.rows]
        return marks.total / batch.total_weight, by_group(marks.main, groups, torch.ones_like(marks.main))

    @torch.no_grad()
    def probe(self, samples: int) -> Mapping[str, str]:
        """How often the first drafted token is the target's likeliest, on held-out text under training's masks."""
        batch = collate(self.tokenizer, probe_samples(samples), prompt_weight=0.0)
        self.pupil.eval()
        marks = self.lesson(batch)
        self.pupil.train()
        agreement = by_group(marks.hits.float(), batch.groups[marks.rows], torch.ones_like(marks.main))
        return {name: f"{share:.3f}" for name, share in zip(GROUPS, agreement.tolist(), strict=True)}

    def export(self, directory: Path) -> None:
        """The family's published layout, in bfloat16."""
        self.pupil.export(directory)
        mark_drafter(directory, self.teacher.facts.directory)

    def _frequencies(self) -> Tensor:
        """Of the first shard's replies."""
        counts = torch.zeros(self.teacher.facts.sizes.vocab, dtype=torch.int64)
        for batch in shard_batches(self._recipe.stream, self.tokenizer, 0):
            counts += torch.bincount(batch.labels[batch.weights == 1], minlength=len(counts))
        return counts
