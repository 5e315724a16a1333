"""The training loop on the generated corpus: step, report, save, resume."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from outrider_models.training.core.optimizer import Optimizer
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.recipes.checkpoint import Position, has_checkpoint, load_checkpoint, save_checkpoint
from outrider_models.training.recipes.data import GROUPS, LabeledBatch, shard_batches
from outrider_models.training.recipes.data_parallel import SINGLE_PROCESS, DataParallel
from outrider_models.training.recipes.recipe import Rates, StreamSettings

_SMOOTHING = 0.98
_OPTIMIZER = "optimiser"  # spelled so in checkpoints: runs of older versions can be resumed


class Task(Protocol):
    """A network in training with its loss, files and scores."""

    @property
    def network(self) -> nn.Module: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def loss(self, batch: LabeledBatch, progress: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the loss at `progress` of the run, and its main term by group [groups], nan if absent."""
        ...

    def export(self, directory: Path) -> None: ...

    def probe(self, samples: int) -> Mapping[str, str]:
        """Return scores on held-out prompts, `samples` of each family."""
        ...


@dataclass(frozen=True, slots=True)
class RunTiming:
    """Time limits of a run, and the intervals of its checkpoints and probes."""

    budget_s: float | None = None
    checkpoint_s: float = 180.0
    probe_s: float = 300.0
    probe_samples: int = 12  # per family
    stop_after_steps: int | None = None  # stop as if interrupted, after so many steps of this process
    clock: Callable[[], float] = time.monotonic


class RecipeTrainer:
    """Trains one task on the stream. The next step depends on nothing that a checkpoint does not hold."""

    def __init__(
        self,
        task: Task,
        stream: StreamSettings,
        rates: Rates,
        directory: Path,
        reporter: ProgressReporter,
        timing: RunTiming = RunTiming(),
        parallel: DataParallel = SINGLE_PROCESS,
    ) -> None:
        self.task, self.stream, self.rates, self.directory, self.timing = task, stream, rates, directory, timing
        self._reporter, self._parallel = reporter, parallel
        self.position = Position()
        self._optimizer = Optimizer(task.network, rates.muon_lr, rates.adamw_lr, rates.weight_decay)
        directory.mkdir(parents=True, exist_ok=True)
        if has_checkpoint(directory):
            self._resume()
        self._began_s = timing.clock() - self.position.elapsed_s
        self._saved_s = self._probed_s = self.position.elapsed_s
        self._first = (self.position.step, self.position.tokens, self.position.elapsed_s)
        self._smoothed = [float("nan")] * len(GROUPS)

    def finish(self) -> None:
        """Train to the end and write the model."""
        for batch in self._batches():
            self._step(batch)
            if self._parallel.is_leader:
                self._report_and_save()
            # All processes stop at the same step, or the others would wait for this one's gradients forever.
            if self._parallel.broadcast(self._ended()):
                break
        if self._parallel.is_leader:
            self._save()
            self._probe()

    @property
    def progress(self) -> float:
        at = self.position
        return progress_of(at.tokens, self.stream.total_tokens, at.elapsed_s, self.timing.budget_s)

    def _batches(self) -> Iterator[LabeledBatch]:
        while True:
            batches = shard_batches(self.stream, self.task.tokenizer, self.position.shard)
            while self.position.batch < len(batches):
                batch = batches[self.position.batch]
                self.position.batch += 1
                yield batch
            self.position.shard, self.position.batch = self.position.shard + 1, 0

    def _step(self, batch: LabeledBatch) -> None:
        by_group = self._gradients(self._parallel.local_rows(batch))
        self._parallel.sum_gradients(self._optimizer.parameters)
        # The leader's clock sets the rate: processes with different rates would drift apart.
        self._optimizer.step(self._parallel.broadcast(self.rates.factor(self.progress)), self.rates.clip_norm)
        self.position.step += 1
        self.position.tokens += batch.num_tokens
        self.position.elapsed_s = self.timing.clock() - self._began_s
        self._smoothed = [_blend(old, new) for old, new in zip(self._smoothed, by_group.tolist(), strict=True)]

    def _gradients(self, part: LabeledBatch) -> Tensor:  # [groups]
        if not len(part.inputs):  # fewer rows than processes
            return torch.full((len(GROUPS),), float("nan"))
        loss, by_group = self.task.loss(part, self.progress)
        loss.backward()  # type: ignore[no-untyped-call]  # unannotated in torch
        return by_group

    def _report_and_save(self) -> None:
        """Report progress; save and probe when they are due."""
        elapsed_s = self.position.elapsed_s
        self._reporter.update(self.progress, elapsed_s, self._status())
        if elapsed_s - self._saved_s >= self.timing.checkpoint_s:
            self._saved_s = elapsed_s
            self._save()
        if elapsed_s - self._probed_s >= self.timing.probe_s:
            self._probed_s = elapsed_s
            self._probe()

    def _ended(self) -> bool:
        return self.progress >= 1 or self.position.step - self._first[0] == self.timing.stop_after_steps

    def _save(self) -> None:
        states = {"model": self.task.network.state_dict(), _OPTIMIZER: self._optimizer.state_dict()}
        save_checkpoint(self.directory, self.position, states)
        self.task.export(self.directory)

    def _resume(self) -> None:
        self.position, states = load_checkpoint(self.directory)
        self.task.network.load_state_dict(states["model"])
        self._optimizer.load_state_dict(states[_OPTIMIZER])

    def _probe(self) -> None:
        at = self.position
        losses = {name: round(loss, 4) for name, loss in zip(GROUPS, self._smoothed, strict=True) if loss == loss}
        entry = {"step": at.step, "tokens": at.tokens, "elapsed_s": round(at.elapsed_s, 1)}
        scores = self.task.probe(self.timing.probe_samples)
        self._reporter.record({**entry, "tokens_per_s": round(self._rate(), 1), "loss": losses, "scores": scores})

    def _rate(self) -> float:
        _, tokens, elapsed_s = self._first
        seconds = self.position.elapsed_s - elapsed_s
        return (self.position.tokens - tokens) / seconds if seconds else 0.0

    def _status(self) -> str:
        losses = " ".join(f"{n} {loss:.3f}" for n, loss in zip(GROUPS, self._smoothed, strict=True) if loss == loss)
        return f"{self.position.tokens / 1e6:.2f} M tokens  {self._rate():.0f} tokens/s  loss: {losses}"


def progress_of(tokens: int, total_tokens: int, elapsed_s: float, budget_s: float | None) -> float:
    """Share of the run that is done, by tokens or by time, whichever is further."""
    # Time counts too: the learning rate has to finish its decay within the budget.
    of_time = elapsed_s / budget_s if budget_s else 0.0
    return min(1.0, max(tokens / total_tokens, of_time))


def mean_by_group(values: Tensor, groups: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of the counted values [n] of each group; nan for a group without any."""
    share = counted.float()
    sums = torch.zeros(2, len(GROUPS)).index_add_(1, groups, torch.stack((values.detach().float() * share, share)))
    return sums[0] / sums[1]


def _blend(old: float, new: float) -> float:
    if new != new:  # the group was not in the batch
        return old
    return new if old != old else _SMOOTHING * old + (1 - _SMOOTHING) * new
