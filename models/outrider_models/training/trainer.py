"""The training loop: update, report, save, validate, resume. Knows neither what is trained nor on which texts."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from outrider_models.training.checkpoint import Position, load_checkpoint, save_checkpoint, save_model
from outrider_models.training.config import TrainConfig
from outrider_models.training.core.interfaces import Batch, LossOutput
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.data.texts import ChatTokens, TextSource, make_batch
from outrider_models.training.data_parallel import SINGLE_PROCESS, DataParallel

_SMOOTHING = 0.98


class Task(Protocol):
    """A network in training with its loss, files and scores."""

    @property
    def network(self) -> nn.Module: ...

    def loss(self, batch: Batch, progress: float = 0.0) -> LossOutput:
        """Compute the loss at `progress` of the run."""

    def export(self, directory: Path) -> None: ...

    def validate(self) -> Mapping[str, object]:
        """Return scores on held-out prompts, as JSON values."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingJob:
    """The settings, texts, task and learning rates of a run."""

    config: TrainConfig
    source: TextSource
    task: Task
    factor: Callable[[int, float], float]  # share of the full learning rates, by update from 0 and progress
    description: dict[str, Any]  # Any: JSON values; all that the result depends on


class Trainer:
    """Trains one task on one source of texts. The next update depends on nothing that a checkpoint does not hold.

    `budget_s`: the run ends in that time. `stop_after_updates`: stop as if interrupted, after so many.
    """

    def __init__(
        self,
        run: TrainingJob,
        directory: Path,
        reporter: ProgressReporter,
        parallel: DataParallel = SINGLE_PROCESS,
        *,
        budget_s: float | None = None,
        stop_after_updates: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task, self.source, self.position = run.task, run.source, Position()
        self._config, self._factor, self._directory, self._reporter = run.config, run.factor, directory, reporter
        self._parallel, self._budget_s, self._clock = parallel, budget_s, clock
        self._device = next(self.task.network.parameters()).device
        self._optimizer = run.config.schedule.make_optimizer(self.task.network)
        # Main term and share of hits, of all texts and of each kind.
        self._smoothed = torch.full((1 + len(self.source.kinds), 2), torch.nan)
        self._resume()
        self._first = replace(self.position)
        self._stop_at = None if stop_after_updates is None else self.position.update + stop_after_updates
        self._began_s = clock() - self.position.elapsed_s
        self._found: Mapping[str, object] = {}

    def finish(self) -> None:
        """Train until the run ends; the model is then in the directory."""
        for texts in self._updates():
            self._step(texts)
            self._report()
            if self._due(self._config.machine.checkpoint_updates):
                self._save()
            if self._due(self._config.validation.every_updates):
                self._validate()
        self._save()
        self._validate()

    @property
    def progress(self) -> float:
        """Share of the run that is done, by texts or by time, whichever is further."""
        at = self.position
        # Time counts too: the learning rate has to finish its decay within the budget.
        of_time = at.elapsed_s / self._budget_s if self._budget_s else 0.0
        return min(1.0, max(self.source.progress(at.update, at.tokens), of_time))

    @property
    def is_done(self) -> bool:
        """Whether no update is left, not even after an interruption."""
        return self.progress >= 1

    def _updates(self) -> Iterator[Sequence[ChatTokens]]:
        at = self.position
        while not self._ended():
            updates = self.source.updates(at.shard)
            while at.shard_updates < len(updates) and not self._ended():
                at.shard_updates += 1
                yield updates[at.shard_updates - 1]
            if at.shard_updates == len(updates):
                at.shard, at.shard_updates = at.shard + 1, 0

    def _ended(self) -> bool:
        # All processes stop at the same update, or the others would wait for this one's gradients forever.
        return bool(self._parallel.broadcast(self.is_done or self.position.update == self._stop_at))

    def _step(self, texts: Sequence[ChatTokens]) -> None:
        """Step the optimizer with the gradient of all passes and processes, over the weight of the update."""
        progress, at, schedule = self.progress, self.position, self._config.schedule
        weight = sum(self._weight(text) for text in texts)
        sums = torch.zeros(len(self.source.kinds), 3, device=self._device)
        for part in self._parallel.share(texts, self._config.machine.part):
            output = self.task.loss(make_batch(part, self._device), progress)
            (output.total / weight).backward()  # type: ignore[no-untyped-call]  # unannotated in torch
            sums += self._sums(part, output)
        self._parallel.sum_gradients(self._optimizer.parameters)
        # The leader's clock sets the rate: processes with different rates would drift apart.
        self._optimizer.step(self._parallel.broadcast(self._factor(at.update, progress)), schedule.clip_norm)
        at.update, at.tokens = at.update + 1, at.tokens + self.source.num_tokens(texts)
        at.elapsed_s = self._clock() - self._began_s
        self._smooth(self._parallel.sum(sums).cpu())

    def _weight(self, text: ChatTokens) -> float:
        labels = text.num_labels
        return labels + self.source.prompt_weight * (len(text.ids) - 1 - labels)

    def _sums(self, part: Sequence[ChatTokens], output: LossOutput) -> Tensor:
        """Return the sums [kinds, 3] of the main term, hits and positions."""
        kinds = torch.tensor([self.source.kinds.index(text.kind) for text in part], device=self._device)
        columns = torch.stack((output.main.float(), output.hits.float(), torch.ones_like(output.main).float()), dim=1)
        return torch.zeros(len(self.source.kinds), 3, device=self._device).index_add_(0, kinds[output.rows], columns)

    def _smooth(self, sums: Tensor) -> None:
        rows, old = torch.cat((sums.sum(0, keepdim=True), sums)), self._smoothed
        new = rows[:, :2] / rows[:, 2:]  # nan for a kind that was not in the update
        blended = torch.where(old.isnan(), new, _SMOOTHING * old + (1 - _SMOOTHING) * new)
        self._smoothed = torch.where(new.isnan(), old, blended)

    def _due(self, every: int) -> bool:
        # The end saves and validates by itself.
        return bool(every) and self.position.update % every == 0 and not self._ended()

    def _save(self) -> None:
        """Save the state to resume from, and the model in its published layout."""
        # Masks and noise come from torch's generators: a resumed run has to continue their sequences.
        generators = self._parallel.gather(self._generators())
        if self._parallel.is_leader:
            own = {"model": self.task.network.state_dict(), "optimizer": self._optimizer.state_dict()}
            save_checkpoint(self._directory, self.position, {**own, "generators": generators, "losses": self._smoothed})
            save_model(self._directory, self.task.export)

    def _resume(self) -> None:
        if found := load_checkpoint(self._directory):
            self.position, states = found
            self.task.network.load_state_dict(states["model"])
            self._optimizer.load_state_dict(states["optimizer"])
            self._smoothed = states["losses"]
            # More processes than before: the further ones keep the generators that their seeds gave them.
            if self._parallel.rank < len(states["generators"]):
                self._set_generators(states["generators"][self._parallel.rank])

    def _generators(self) -> list[Tensor]:
        on_device = [] if self._device.type == "cpu" else [torch.get_device_module(self._device).get_rng_state()]
        return [torch.get_rng_state(), *on_device]

    def _set_generators(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1 and self._device.type != "cpu":
            torch.get_device_module(self._device).set_rng_state(states[1])

    def _validate(self) -> None:
        """Record losses and scores; only the leader does."""
        if not self._parallel.is_leader:
            return
        generators, at = self._generators(), self.position
        self._found = self.task.validate()
        self._set_generators(generators)  # the result depends on no validation
        (loss, top1), *by_kind = ([round(value, 4) for value in row] for row in self._smoothed.tolist())
        kinds = {kind: loss for kind, (loss, _) in zip(self.source.kinds, by_kind, strict=True) if loss == loss}
        self._reporter.record({
            **{"update": at.update, "tokens": at.tokens, "elapsed_s": round(at.elapsed_s, 1)},
            **{"tokens_per_s": round(self._speed(), 1), "loss": loss, "top1": top1},
            **({"loss_by_kind": kinds} if len(kinds) > 1 else {}),
            **self._found,
        })  # fmt: skip

    def _report(self) -> None:
        loss, top1 = self._smoothed[0].tolist()
        tau = f"  tau {self._found['tau']:.2f}" if "tau" in self._found else ""
        status = f"update {self.position.update}  {self._speed():.0f} {self.source.unit}/s  "
        status += f"loss {loss:.3f}  top-1 {top1:.3f}{tau}"
        self._reporter.update(self.progress, self.position.elapsed_s, status)

    def _speed(self) -> float:
        seconds = self.position.elapsed_s - self._first.elapsed_s
        return (self.position.tokens - self._first.tokens) / seconds if seconds else 0.0
