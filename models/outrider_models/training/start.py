"""From a recipe's name and a few options to a training run."""

from pathlib import Path
from typing import assert_never

import torch

from outrider_models.embedded import target_dir
from outrider_models.recipe import EagleRecipe, MoaRecipe, Recipe, TargetRecipe, read_recipe
from outrider_models.training.checkpoint import has_checkpoint
from outrider_models.training.drafter import EagleTask, MoaTask
from outrider_models.training.progress import Reporter
from outrider_models.training.run import Pace, Run, Task
from outrider_models.training.target import TargetTask
from outrider_proto.errors import UsageError


def start(
    name: str, out: Path, *, resume: bool, minutes: float | None, threads: int | None, target: Path | None
) -> None:
    """Run the recipe to its end. Raises UsageError before anything is written."""
    recipe = read_recipe(name)
    _check_place(out, resume)
    if threads:
        torch.set_num_threads(threads)
    task = make_task(recipe, out, target)
    out.mkdir(parents=True, exist_ok=True)
    pace = Pace(budget_s=minutes * 60 if minutes else None)
    with Reporter(out, name) as reporter:
        Run(task, recipe.stream, recipe.rates, out, reporter, pace).finish()


def make_task(recipe: Recipe, out: Path, target: Path | None) -> Task:
    """What the recipe trains; a drafter for `target`, or for the embedded one. Raises UsageError."""
    match recipe:
        case TargetRecipe():
            if target:
                raise UsageError(f"--target {target}: this recipe makes a target, it needs none")
            return TargetTask(recipe, out)
        case MoaRecipe():
            return MoaTask(recipe, target or target_dir())
        case EagleRecipe():
            return EagleTask(recipe, target or target_dir())
        case _:
            assert_never(recipe)


def _check_place(out: Path, resume: bool) -> None:
    if resume and not has_checkpoint(out):
        raise UsageError(f"--resume: {out} holds no checkpoint")
    if not resume and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists and is not an empty directory; --resume goes on from a checkpoint")
