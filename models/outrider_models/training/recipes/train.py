"""Start a training run from a recipe and a few options, in one process or several."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import torch
import torch.multiprocessing
from rich.console import Console

from outrider_models.core.embedded import target_dir
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.recipes.checkpoint import has_checkpoint
from outrider_models.training.recipes.data_parallel import SINGLE_PROCESS, DataParallel
from outrider_models.training.recipes.drafter import DrafterTask
from outrider_models.training.recipes.recipe import DrafterRecipe, Recipe, TargetRecipe, read_recipe
from outrider_models.training.recipes.target import TargetTask
from outrider_models.training.recipes.trainer import RecipeTrainer, RunTiming, Task
from outrider_proto.addresses import free_port
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class RecipeRunOptions:
    """Options of one run. `target` and `start` are for drafters only."""

    recipe: str
    out: Path
    target: Path | None = None  # None: the embedded target
    start: str | None = None  # source of the initial weights; None: random ones
    minutes: float | None = None


def train_recipe(options: RecipeRunOptions, *, resume: bool = False, processes: int = 1) -> None:
    """Train a recipe to its end. Raises UsageError before anything is written."""
    recipe = read_recipe(options.recipe)
    check_output_dir(options.out, resume)
    if isinstance(recipe, TargetRecipe) and (options.target or options.start):
        raise UsageError("--target and --start are for drafters: this recipe trains a target")
    task = _task(options, recipe)
    options.out.mkdir(parents=True, exist_ok=True)
    with _data_parallel(options, processes) as parallel, ProgressReporter(options.out, options.recipe) as reporter:
        _run(options, recipe, task, reporter, parallel)


def make_task(recipe: Recipe, out: Path, target: Path | None, start: str | None = None) -> Task:
    """Build the task that the recipe describes. Raises UsageError."""
    match recipe:
        case TargetRecipe():
            return TargetTask(recipe, out)
        case DrafterRecipe():
            return DrafterTask(recipe, target or target_dir(), start)
        case _:
            assert_never(recipe)


def _task(options: RecipeRunOptions, recipe: Recipe) -> Task:
    return make_task(recipe, options.out, options.target, options.start)


def _run(
    options: RecipeRunOptions, recipe: Recipe, task: Task, reporter: ProgressReporter, parallel: DataParallel
) -> None:
    timing = RunTiming(budget_s=options.minutes * 60 if options.minutes else None)
    RecipeTrainer(task, recipe.stream, recipe.rates, options.out, reporter, timing, parallel).finish()


@contextmanager
def _data_parallel(options: RecipeRunOptions, processes: int) -> Iterator[DataParallel]:
    """Start the other processes, lead them, and end them with the run."""
    if processes == 1:
        yield SINGLE_PROCESS
        return
    torch.set_num_threads(1)  # one thread per process: more would only compete for the same cores
    port = free_port()
    spawning = torch.multiprocessing.get_context("spawn")
    followers = [
        spawning.Process(target=_follow, args=(options, rank, processes, port)) for rank in range(1, processes)
    ]
    for process in followers:
        process.start()
    try:
        yield DataParallel.join(0, processes, port)
    # A follower waits for the leader in every step: it never ends by itself if the leader fails.
    finally:
        for process in followers:
            process.terminate()
            process.join()


def _follow(options: RecipeRunOptions, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    recipe = read_recipe(options.recipe)
    reporter = ProgressReporter(options.out, options.recipe, Console(quiet=True))
    _run(options, recipe, _task(options, recipe), reporter, DataParallel.join(rank, size, port))


def check_output_dir(out: Path, resume: bool, resumable: Callable[[Path], bool] = has_checkpoint) -> None:
    """Raise UsageError unless a run may write to `out` or resume from it."""
    if resume and not resumable(out):
        raise UsageError(f"--resume: {out} holds no checkpoint")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists and is not an empty directory; --resume continues from a checkpoint")
