"""Starts a run: reads and checks everything before it writes anything."""

import functools
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tensors_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import target_source
from outrider_models.core.tables import Table
from outrider_models.training.checkpoint import check_config, check_output_dir, write_config
from outrider_models.training.config import TrainConfig, make_train_config
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.core.rates import Schedule
from outrider_models.training.core.teacher import target_facts
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.tokens import load_chat_tokenizer
from outrider_models.training.data_parallel import data_parallel, training_device
from outrider_models.training.drafter import DrafterTask
from outrider_models.training.trainer import Trainer, TrainingJob

FEATURES = "features"


@dataclass(frozen=True, slots=True)
class ChatRunOptions:
    """Options of one run on chats."""

    family: str
    data: Path
    out: Path
    target: str | None  # directory or hub name; None: the embedded target
    changes: Table  # settings that differ from the family's defaults
    start: str | None = None  # source of the initial weights; None: random ones


def train(
    options: ChatRunOptions,
    *,
    resume: bool = False,
    console: Console | None = None,
    stop_after_updates: int | None = None,
) -> Trainer:
    """Train to the end and return the trainer. Raises UsageError before anything is written."""
    launch = Launch(options.family, options.out, reseed_leader=True, stop_after_updates=stop_after_updates)
    return launch.train(functools.partial(chat_run, options), resume=resume, console=console)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a job runs, whatever it trains on: `title` stands over its progress, `out` is its directory."""

    title: str
    out: Path
    reseed_leader: bool  # all other processes are
    stop_after_updates: int | None = None  # as if interrupted
    budget_s: float | None = None

    def train(
        self, prepare: Callable[[], TrainingJob], *, resume: bool = False, console: Console | None = None
    ) -> Trainer:
        """Run the job that `prepare` makes. Raises UsageError before it writes."""
        check_output_dir(self.out, resume)
        job = prepare()
        if resume:
            check_config(self.out, job.description)
        with data_parallel() as parallel:
            # Weights come from one seed in all processes, masks and noise from one for each.
            if parallel.rank or self.reseed_leader:
                torch.manual_seed(job.source.seed + 1 + parallel.rank)
            if parallel.is_leader:
                self.out.mkdir(parents=True, exist_ok=True)
                write_config(self.out, job.description)
            else:
                console = Console(quiet=True)
            with ProgressReporter(self.out, self.title, console) as reporter:
                reporter.say(_summary(job, parallel.size))
                trainer = Trainer(
                    job,
                    self.out,
                    reporter,
                    parallel,
                    budget_s=self.budget_s,
                    stop_after_updates=self.stop_after_updates,
                )
                trainer.finish()
            if trainer.is_done and job.config.machine.features == "auto":
                shutil.rmtree(self.out / FEATURES, ignore_errors=True)
            return trainer


def chat_run(options: ChatRunOptions) -> TrainingJob:
    """Read chats and build what is trained on them. Raises UsageError."""
    target = resolve_dir(target_source(options.target))
    config = make_train_config(options.family, target_facts(target), options.changes)
    data, length, schedule = config.data, config.length, config.schedule
    assert isinstance(data, ChatSettings)
    assert isinstance(schedule, Schedule)
    assert length is not None
    source = ChatSource.read(options.data, load_chat_tokenizer(target), data, length)
    start, features = initial_weights(options.start), config.machine.features
    # A single pass reads nothing that it wrote.
    if features == "auto":
        features = str(options.out / FEATURES) if length.epochs > 1 else "no"
    kept_in = None if features == "no" else Path(features)
    task = DrafterTask(config, target, source, start, kept_in, training_device())
    description = describe(config, target, start) | {"file": hashlib.sha256(options.data.read_bytes()).hexdigest()}

    def factor(update: int, _: float) -> float:
        return schedule.rate(update, source.updates_an_epoch, source.num_updates) / schedule.peak

    return TrainingJob(config, source, task, factor, description)


def initial_weights(source: str | None) -> DrafterFiles | None:
    return DrafterFiles.open(DrafterSource(source)) if source else None


def describe(config: TrainConfig, target: Path | None, start: DrafterFiles | None) -> dict[str, Any]:  # Any: JSON
    """Return all that the result depends on; other settings may change when a run is resumed."""
    description = config.description()
    if target is not None:
        description["target"] = target_fingerprint(target)
    if start is not None:
        description["start"] = tensors_fingerprint({name: start.checkpoint.read(name) for name in start.names})
    return description


def _summary(run: TrainingJob, processes: int) -> str:
    num_trained = sum(parameter.numel() for parameter in run.task.network.parameters() if parameter.requires_grad)
    return f"{num_trained:,} parameters are trained on {run.source}; processes: {processes}"
