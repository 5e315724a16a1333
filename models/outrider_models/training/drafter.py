"""A drafter in training with its frozen target as teacher: its loss, its files, its acceptance."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import write_target_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.processor import has_bf16
from outrider_models.training.config import TrainConfig
from outrider_models.training.core.features import FeatureStore
from outrider_models.training.core.interfaces import Batch, LossOutput, TeacherOutput, TeacherRequest, TrainableDrafter
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.data.texts import TextSource, make_batch
from outrider_models.training.families import trainable_family
from outrider_models.training.validation import Validator

_EXAMPLES_AT_ONCE = 4


class DrafterTask:
    """A drafter, with random weights or those of another drafter. Raises UsageError if target or weights do not fit."""

    def __init__(
        self,
        config: TrainConfig,
        target: Path,
        source: TextSource,
        start: DrafterFiles | None = None,
        features: Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        machine = config.machine
        wide = machine.precision == "no" or (machine.precision == "auto" and not has_bf16())
        self.teacher = Teacher.load(target, torch.float32 if wide else torch.bfloat16, device)
        # Before the network is made: its initial weights are random, and the same in all processes.
        torch.manual_seed(source.seed)
        facts = self.teacher.facts
        self.drafter: TrainableDrafter = trainable_family(config.family).make_drafter(
            config.drafter, facts, lambda: source.frequencies(facts.sizes.vocab)
        )
        # Before it starts from the target, whose outputs lie there.
        self.drafter.to(device)
        self.drafter.init_from_lm_head(self.teacher.lm_head)
        if start is not None:
            self.drafter.load_weights(start)
        elif self.drafter.start_request is not None:
            self.drafter.init_from_examples(self._examples(source, self.drafter.start_request, 32 * facts.sizes.hidden))
        self.teacher.restrict(self.drafter.draft_tokens)
        self.teacher.check(self.drafter.teacher_request)
        self._features = FeatureStore(self.teacher, features, int(machine.features_gb * 1e9)) if features else None
        prompts = source.held_out_prompts()
        self._validator = Validator(self.teacher, prompts, config.validation) if prompts else None

    def _examples(
        self, source: TextSource, request: TeacherRequest, tokens: int
    ) -> Iterator[tuple[Batch, TeacherOutput]]:
        """Run the target over the first texts of the run, of about as many tokens."""
        count = 0
        for texts in source.updates(0):
            for first in range(0, len(texts), _EXAMPLES_AT_ONCE):
                batch = make_batch(texts[first : first + _EXAMPLES_AT_ONCE], self.teacher.embed.device)
                yield batch, self.teacher.run(batch.tokens, request)
                count += batch.tokens.numel()
            if count >= tokens:
                return

    @property
    def network(self) -> nn.Module:
        return self.drafter.network

    def loss(self, batch: Batch, progress: float = 0.0) -> LossOutput:
        """Run target and drafter over a batch."""
        request = self.drafter.teacher_request
        if self._features is not None:
            target = self._features.run(batch, request)
        else:
            target = self.teacher.run(batch.tokens, request, batch.loss_mask)
        # A wide drafter computes in the type of its teacher. Not the teacher: autocast would widen some of its outputs.
        dtype = self.teacher.embed.dtype
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            output: LossOutput = self.drafter(batch, target, progress)
        return output

    def export(self, directory: Path) -> None:
        """Write the family's published layout, in bfloat16."""
        self.drafter.write(directory)
        write_target_fingerprint(directory, self.teacher.facts.directory)

    def validate(self) -> Mapping[str, object]:
        """Measure acceptance on held-out prompts with the exported files, as a client would load them."""
        if self._validator is None:
            return {}
        with tempfile.TemporaryDirectory() as directory:
            self.drafter.write(Path(directory))
            found = self._validator.validate(DrafterSource(directory, self.drafter.options))
        return {"tau": round(found.tau, 4), "accepted": found.by_depth}
