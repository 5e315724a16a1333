"""Starts a run: reads and checks everything before it writes anything.

`DrafterTask` is the drafter in training with its frozen target as teacher: its loss, its files, its acceptance.
"""

import functools
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tensors_fingerprint, write_target_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.processor import has_bf16
from outrider_models.core.embedded import target_source
from outrider_models.core.tables import Table
from outrider_models.training.checkpoint import check_config, check_output_dir, write_config
from outrider_models.training.config import TrainConfig, make_train_config
from outrider_models.training.core.features import FeatureStore
from outrider_models.training.core.interfaces import Batch, LossOutput, TeacherOutput, TeacherRequest, TrainableDrafter
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.core.rates import Schedule
from outrider_models.training.core.teacher import Teacher, target_facts
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.served_answers import ServedAnswers
from outrider_models.training.data.texts import TextSource, make_batch
from outrider_models.training.data.tokens import load_chat_tokenizer
from outrider_models.training.data_parallel import data_parallel, training_device
from outrider_models.training.families import trainable_family
from outrider_models.training.trainer import Trainer, TrainingJob
from outrider_models.training.validation import Validator
from outrider_proto.errors import UsageError

_EXAMPLES_AT_ONCE = 4
FEATURES = "features"


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
        served: ServedAnswers | None = None,
    ) -> None:
        machine = config.machine
        wide = machine.precision == "no" or (machine.precision == "auto" and not has_bf16())
        self.teacher = Teacher.load(target, torch.float32 if wide else torch.bfloat16, device)
        self._served = served
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
        self._validator = Validator(self.teacher, prompts, config.validation, served) if prompts else None

    def _examples(
        self, source: TextSource, request: TeacherRequest, tokens: int
    ) -> Iterator[tuple[Batch, TeacherOutput]]:
        """Run the target over the first texts of the run, of about as many tokens."""
        count = 0
        for texts in source.updates(0):
            for first in range(0, len(texts), _EXAMPLES_AT_ONCE):
                batch = make_batch(texts[first : first + _EXAMPLES_AT_ONCE], self.teacher.embed.device)
                served = self._served
                output = served.run(self.teacher, batch, request) if served else self.teacher.run(batch.tokens, request)
                yield batch, output
                count += batch.tokens.numel()
            if count >= tokens:
                return

    @property
    def network(self) -> nn.Module:
        return self.drafter.network

    def loss(self, batch: Batch, progress: float = 0.0) -> LossOutput:
        """Run target and drafter over a batch."""
        request = self.drafter.teacher_request
        if self._served is not None:
            target = self._served.run(self.teacher, batch, request)
        elif self._features is not None:
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


@dataclass(frozen=True, slots=True)
class ChatRunOptions:
    """Options of one run on chats."""

    family: str
    data: Path  # a file, or a directory of served answers
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
    served = ServedAnswers(options.data) if options.data.is_dir() else None
    if served is None:
        source = ChatSource.read(options.data, load_chat_tokenizer(target), data, length)
        digest = hashlib.sha256(options.data.read_bytes()).hexdigest()
    else:
        source, digest = served.source(data, length), served.digest
        if served.layout.target != (own := target_fingerprint(target)):
            raise UsageError(f"data={options.data}: answers of target {served.layout.target}, this one is {own}")
    start, features = initial_weights(options.start), config.machine.features
    # A single pass reads nothing that it wrote.
    if features == "auto":
        features = str(options.out / FEATURES) if length.epochs > 1 and served is None else "no"
    kept_in = None if features == "no" else Path(features)
    task = DrafterTask(config, target, source, start, kept_in, training_device(), served)
    description = describe(config, target, start) | {"file": digest}

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
