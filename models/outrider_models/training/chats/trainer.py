"""The training loop on chats: update, report, save, validate, resume. accelerate handles devices and precision."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor

from outrider_drafters.checkpoints.fingerprint import write_target_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_models.training.chats.batches import Update, epoch_updates, make_batch, updates_an_epoch
from outrider_models.training.chats.checkpoint import has_state, load_state, save_state
from outrider_models.training.chats.config import TrainConfig
from outrider_models.training.chats.tokens import ChatTokens
from outrider_models.training.chats.validation import AcceptanceCounts, Validator
from outrider_models.training.core.interfaces import LossOutput, TrainableDrafter
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.core.teacher import Teacher

_SMOOTHING = 0.98
_TIMEOUT = timedelta(hours=2)  # the other processes wait while the leader validates


@dataclass(slots=True)
class ChatPosition:
    """Position of a run; accelerate saves and loads it with the other state."""

    update: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0

    def state_dict(self) -> dict[str, Any]:  # Any: what accelerate pickles
        return {"update": self.update, "tokens": self.tokens, "elapsed_s": self.elapsed_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # Any: as above
        self.update, self.tokens, self.elapsed_s = state["update"], state["tokens"], state["elapsed_s"]


class ChatTrainer:
    """Trains one drafter on chats. The next update depends on nothing that a checkpoint does not hold."""

    def __init__(
        self,
        accelerator: Accelerator,
        config: TrainConfig,
        teacher: Teacher,
        drafter: TrainableDrafter,
        chats: Sequence[ChatTokens],
        validator: Validator | None,
        directory: Path,
        reporter: ProgressReporter,
        stop_after_updates: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.drafter, self.position = drafter, ChatPosition()
        self._accelerator, self._config, self._teacher = accelerator, config, teacher
        self._chats, self._validator, self._directory, self._reporter = chats, validator, directory, reporter
        self._an_epoch = updates_an_epoch(len(chats), config.length.batch)
        self._updates = max(1, math.ceil(config.length.epochs * self._an_epoch))
        schedule = config.schedule
        optimizer = torch.optim.AdamW(
            [parameter for parameter in drafter.parameters() if parameter.requires_grad],
            lr=schedule.peak, betas=(schedule.beta1, schedule.beta2), weight_decay=schedule.weight_decay,
        )  # fmt: skip
        self._wrapped, self._optimizer = accelerator.prepare(drafter, optimizer)
        accelerator.register_for_checkpointing(self.position)
        if has_state(directory):
            load_state(accelerator, directory)
        self._stop_at = self._updates
        if stop_after_updates is not None:
            self._stop_at = min(self._updates, self.position.update + stop_after_updates)
        self._clock, self._began_s = clock, clock() - self.position.elapsed_s
        self._first = (self.position.tokens, self.position.elapsed_s)
        self._loss = self._hits = float("nan")
        self._tau = float("nan")

    def finish(self) -> None:
        """Train to the end; the drafter is then in the directory."""
        for update in self._remaining():
            self._step(update)
            self._report_and_save()
        self._save()
        self._validate()

    def _remaining(self) -> Iterator[Update]:
        settings, length = self._config, self._config.length
        while self.position.update < self._stop_at:
            epoch, done = divmod(self.position.update, self._an_epoch)
            updates = epoch_updates(
                self._chats, length.batch, settings.machine.part, settings.data.seed, epoch,
                self._accelerator.process_index, self._accelerator.num_processes,
            )  # fmt: skip
            # A resumed run draws the epoch from its start and skips what is done: the order stays the same.
            for number, update in enumerate(updates):
                if number >= done and self.position.update < self._stop_at:
                    yield update

    def _step(self, update: Update) -> None:
        """Step the optimizer with the mean gradient of all parts and processes over the labels of the update."""
        sums = torch.zeros(3, device=self._accelerator.device)  # main term, hits, positions
        for number, part in enumerate(update.parts):
            last = number == len(update.parts) - 1
            # Gradients are exchanged with the last part only; no_sync accumulates the earlier ones locally.
            with nullcontext() if last else self._accelerator.no_sync(self._wrapped):
                sums += self._backward(part, update.num_labels)
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.schedule.rate(self.position.update, self._an_epoch, self._updates)
        self._accelerator.clip_grad_norm_(self.drafter.parameters(), self._config.schedule.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.position.update += 1
        self.position.tokens += update.num_labels
        self.position.elapsed_s = self._clock() - self._began_s
        self._smooth(self._accelerator.reduce(sums))

    def _backward(self, part: Sequence[ChatTokens | None], num_labels: int) -> Tensor:  # [3]
        batch = make_batch(part, self._accelerator.device)
        target = self._teacher.run(batch.tokens, self.drafter.teacher_request)
        output: LossOutput = self._wrapped(batch, target, self.position.update / self._updates)
        # DDP averages gradients over processes; the update needs their sum.
        self._accelerator.backward(output.total * self._accelerator.num_processes / num_labels)
        counted = torch.tensor(float(len(output.main)), device=batch.tokens.device)
        return torch.stack((output.main.sum().float(), output.hits.sum().float(), counted))

    def _smooth(self, sums: Tensor) -> None:
        main, hits, positions = sums.tolist()
        if positions:
            self._loss = _blend(self._loss, main / positions)
            self._hits = _blend(self._hits, hits / positions)

    def _report_and_save(self) -> None:
        """Report progress; save and validate when they are due."""
        if self._accelerator.is_main_process:
            self._reporter.update(self.position.update / self._updates, self.position.elapsed_s, self._status())
        if self._due(self._config.machine.checkpoint_updates):
            self._save()
        if self._due(self._config.validation.every_updates):
            self._validate()

    def _due(self, every: int) -> bool:
        return bool(every) and self.position.update % every == 0 and self.position.update < self._stop_at

    def _save(self) -> None:
        """Save the state to resume from, and the drafter in its published layout."""
        save_state(self._accelerator, self._directory)
        if self._accelerator.is_main_process:
            self.drafter.export(self._directory)
            write_target_fingerprint(self._directory, self._teacher.facts.directory)

    def _validate(self) -> None:
        """Record loss and tau. Only the leader does so, with exported files as a client would load them."""
        if self._accelerator.is_main_process:
            found = self._acceptance()
            at = self.position
            entry = {"update": at.update, "tokens": at.tokens, "elapsed_s": round(at.elapsed_s, 1)}
            metrics = {
                "loss": round(self._loss, 4),
                "top1": round(self._hits, 4),
                "tokens_per_s": round(self._speed(), 1),
            }
            acceptance = {"tau": round(found.tau, 4), "accepted": found.by_depth} if found else {}
            self._reporter.record({**entry, **metrics, **acceptance})
        self._accelerator.wait_for_everyone()

    def _acceptance(self) -> AcceptanceCounts | None:
        if self._validator is None:
            return None
        with tempfile.TemporaryDirectory() as directory:
            self.drafter.export(Path(directory))
            found = self._validator.validate(DrafterSource(directory, self.drafter.options))
        self._tau = found.tau
        return found

    def _speed(self) -> float:
        tokens, elapsed_s = self._first
        seconds = self.position.elapsed_s - elapsed_s
        return (self.position.tokens - tokens) / seconds if seconds else 0.0

    def _status(self) -> str:
        tau = "" if math.isnan(self._tau) else f"  tau {self._tau:.2f}"
        rate = self._optimizer.param_groups[0]["lr"]
        return (
            f"update {self.position.update}/{self._updates}  {self._speed():.0f} reply tokens/s  lr {rate:.1e}  "
            f"loss {self._loss:.3f}  top-1 {self._hits:.3f}{tau}"
        )


def make_accelerator(config: TrainConfig) -> Accelerator:
    """Make the accelerator of this process, alone or among those that `accelerate launch` or `torchrun` started."""
    precision = config.machine.precision
    if precision == "auto":
        precision = "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"
    timeout = InitProcessGroupKwargs(timeout=_TIMEOUT)
    cpu_only = not torch.accelerator.is_available()  # several processes on CPUs find each other only if this is set
    return Accelerator(mixed_precision=precision, cpu=cpu_only, kwargs_handlers=[timeout])


def _blend(old: float, new: float) -> float:
    return new if math.isnan(old) else _SMOOTHING * old + (1 - _SMOOTHING) * new
