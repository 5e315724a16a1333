"""From a recipe's name and a few options to a training run, in one process or several."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import torch
import torch.multiprocessing
from rich.console import Console

from outrider_models.core.embedded import target_dir
from outrider_models.training.core.progress import Reporter
from outrider_models.training.recipes.checkpoint import has_checkpoint
from outrider_models.training.recipes.data_parallel import ALONE, Peers
from outrider_models.training.recipes.drafter import DrafterTask
from outrider_models.training.recipes.recipe import DrafterRecipe, Recipe, TargetRecipe, read_recipe
from outrider_models.training.recipes.target import TargetTask
from outrider_models.training.recipes.trainer import Pace, Run, Task
from outrider_proto.addresses import free_port
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Order:
    """What to train, where; of a drafter: for which target (None for the embedded one), from whose weights (None for
    fresh ones); in which time."""

    recipe: str
    out: Path
    target: Path | None = None
    start: str | None = None
    minutes: float | None = None


def start(order: Order, *, resume: bool = False, processes: int = 1) -> None:
    """Run the recipe to its end. Raises UsageError before anything is written."""
    recipe = read_recipe(order.recipe)
    check_place(order.out, resume)
    if isinstance(recipe, TargetRecipe) and (order.target or order.start):
        raise UsageError("--target and --start are for drafters: this recipe makes a target")
    task = _task(order, recipe)
    order.out.mkdir(parents=True, exist_ok=True)
    with _peers(order, processes) as peers, Reporter(order.out, order.recipe) as reporter:
        _run(order, recipe, task, reporter, peers)


def make_task(recipe: Recipe, out: Path, target: Path | None, start: str | None = None) -> Task:
    """What the recipe trains. Raises UsageError."""
    match recipe:
        case TargetRecipe():
            return TargetTask(recipe, out)
        case DrafterRecipe():
            return DrafterTask(recipe, target or target_dir(), start)
        case _:
            assert_never(recipe)


def _task(order: Order, recipe: Recipe) -> Task:
    return make_task(recipe, order.out, order.target, order.start)


def _run(order: Order, recipe: Recipe, task: Task, reporter: Reporter, peers: Peers) -> None:
    pace = Pace(budget_s=order.minutes * 60 if order.minutes else None)
    Run(task, recipe.stream, recipe.rates, order.out, reporter, pace, peers).finish()


@contextmanager
def _peers(order: Order, processes: int) -> Iterator[Peers]:
    """Lead the processes that are asked for; they end with the run."""
    if processes == 1:
        yield ALONE
        return
    torch.set_num_threads(1)
    port = free_port()
    spawning = torch.multiprocessing.get_context("spawn")
    others = [spawning.Process(target=_follow, args=(order, rank, processes, port)) for rank in range(1, processes)]
    for process in others:
        process.start()
    try:
        yield Peers.join(0, processes, port)
    finally:
        for process in others:
            process.terminate()
            process.join()


def _follow(order: Order, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    recipe = read_recipe(order.recipe)
    reporter = Reporter(order.out, order.recipe, Console(quiet=True))
    _run(order, recipe, _task(order, recipe), reporter, Peers.join(rank, size, port))


def check_place(out: Path, resume: bool, resumable: Callable[[Path], bool] = has_checkpoint) -> None:
    """Raise UsageError unless a run may write there, or go on from what lies there."""
    if resume and not resumable(out):
        raise UsageError(f"--resume: {out} holds no checkpoint")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists and is not an empty directory; --resume goes on from a checkpoint")
