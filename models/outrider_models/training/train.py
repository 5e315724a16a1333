"""Starts a run from options: reads and checks everything before it writes anything."""

import functools
import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from tokenizers import Tokenizer

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tensors_fingerprint
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.core.embedded import target_source
from outrider_models.core.tables import Table
from outrider_models.core.tokenizer import SPECIALS, special_id
from outrider_models.training.checkpoint import check_config, check_output_dir, write_config
from outrider_models.training.config import TARGET, TrainConfig, make_train_config, read_recipe
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.core.rates import Rates, Schedule
from outrider_models.training.core.teacher import target_facts
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.corpus import CorpusSettings, CorpusSource
from outrider_models.training.data.tokens import load_chat_tokenizer
from outrider_models.training.data_parallel import DataParallel, data_parallel, training_device
from outrider_models.training.drafter import DrafterTask
from outrider_models.training.target import TargetShape, TargetTask, target_tokenizer
from outrider_models.training.trainer import Task, Trainer, TrainingJob
from outrider_proto.errors import UsageError

FEATURES = "features"


@dataclass(frozen=True, slots=True)
class RecipeRunOptions:
    """Options of one run of a recipe, on the corpus. `target` and `start` are for drafters only."""

    recipe: str
    out: Path
    target: str | None = None  # directory or hub name; None: the embedded target
    start: str | None = None  # source of the initial weights; None: random ones
    minutes: float | None = None
    seed: int = 0  # added to the recipe's own
    tokens: int | None = None  # to read; None: as many as the recipe says


@dataclass(frozen=True, slots=True)
class ChatRunOptions:
    """Options of one run on chats."""

    family: str
    data: Path
    out: Path
    target: str | None  # as above
    changes: Table  # settings that differ from the family's defaults
    start: str | None = None  # as above


def train(
    options: RecipeRunOptions | ChatRunOptions,
    *,
    resume: bool = False,
    processes: int = 1,
    console: Console | None = None,
    stop_after_updates: int | None = None,
) -> Trainer:
    """Train to the end and return the trainer. Raises UsageError before anything is written."""
    check_output_dir(options.out, resume)
    run = _prepare(options)
    if resume:
        check_config(options.out, run.description)
    finish = functools.partial(_finish, options, stop_after_updates)
    with data_parallel(processes, finish) as parallel:
        return finish(parallel, run, console)


def _finish(
    options: RecipeRunOptions | ChatRunOptions,
    stop_after_updates: int | None,
    parallel: DataParallel,
    run: TrainingJob | None = None,
    console: Console | None = None,
) -> Trainer:
    run = run or _prepare(options)
    # Weights come from one seed in all processes, masks and noise from one for each. The leader of a recipe goes on
    # with that of the weights: so the shipped drafters were trained.
    if parallel.rank or isinstance(options, ChatRunOptions):
        torch.manual_seed(run.source.seed + 1 + parallel.rank)
    if parallel.is_leader:
        options.out.mkdir(parents=True, exist_ok=True)
        write_config(options.out, run.description)
    else:
        console = Console(quiet=True)
    title = options.recipe if isinstance(options, RecipeRunOptions) else options.family
    budget_s = options.minutes * 60 if isinstance(options, RecipeRunOptions) and options.minutes else None
    with ProgressReporter(options.out, title, console) as reporter:
        reporter.say(_summary(run, parallel.size))
        trainer = Trainer(
            run, options.out, reporter, parallel, budget_s=budget_s, stop_after_updates=stop_after_updates
        )
        trainer.finish()
    if trainer.is_done and run.config.machine.features == "auto":
        shutil.rmtree(options.out / FEATURES, ignore_errors=True)
    return trainer


def _prepare(options: RecipeRunOptions | ChatRunOptions) -> TrainingJob:
    """Read everything and build what is trained. Raises UsageError."""
    if isinstance(options, RecipeRunOptions):
        config = read_recipe(options.recipe).varied(options.seed, options.tokens)
        return recipe_run(config, options.target, options.start)
    return chat_run(options)


def recipe_run(config: TrainConfig, target_name: str | None = None, start_source: str | None = None) -> TrainingJob:
    """Build what a recipe trains. Raises UsageError."""
    data, rates = config.data, config.schedule
    assert isinstance(data, CorpusSettings)
    assert isinstance(rates, Rates)
    if config.family == TARGET:
        if target_name or start_source:
            raise UsageError("--target and --start are for drafters: this recipe trains a target")
        shape: TargetShape = config.drafter
        tokenizer = target_tokenizer(shape, data.seed)
        task: Task = TargetTask(shape, tokenizer, data.seed, data.prompt_weight)
        source, target, start = CorpusSource(data, tokenizer), None, None
    else:
        target, start = resolve_dir(target_source(target_name)), _initial_weights(start_source)
        source = CorpusSource(data, _corpus_tokenizer(target))
        task = DrafterTask(config, target, source, start)
    description = _description(config, target, start)
    return TrainingJob(config, source, task, lambda _, progress: rates.factor(progress), description)


def chat_run(options: ChatRunOptions) -> TrainingJob:
    """Read chats and build what is trained on them. Raises UsageError."""
    target = resolve_dir(target_source(options.target))
    config = make_train_config(options.family, target_facts(target), options.changes)
    data, length, schedule = config.data, config.length, config.schedule
    assert isinstance(data, ChatSettings)
    assert isinstance(schedule, Schedule)
    assert length is not None
    source = ChatSource.read(options.data, load_chat_tokenizer(target), data, length)
    start, features = _initial_weights(options.start), config.machine.features
    # A single pass reads nothing that it wrote.
    if features == "auto":
        features = str(options.out / FEATURES) if length.epochs > 1 else "no"
    kept_in = None if features == "no" else Path(features)
    task = DrafterTask(config, target, source, start, kept_in, training_device())
    description = _description(config, target, start) | {"file": hashlib.sha256(options.data.read_bytes()).hexdigest()}

    def factor(update: int, _: float) -> float:
        return schedule.rate(update, source.updates_an_epoch, source.num_updates) / schedule.peak

    return TrainingJob(config, source, task, factor, description)


def _initial_weights(source: str | None) -> DrafterFiles | None:
    return DrafterFiles.open(DrafterSource(source)) if source else None


def _corpus_tokenizer(target: Path) -> Tokenizer:
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
        for token in SPECIALS:
            special_id(tokenizer, token)
    except Exception as error:  # tokenizers raises nothing narrower
        raise UsageError(
            f"{target}: recipes train for targets with the embedded tokenizer ({error}): use --family and --data"
        ) from None
    return tokenizer


def _description(config: TrainConfig, target: Path | None, start: DrafterFiles | None) -> dict[str, Any]:  # Any: JSON
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
