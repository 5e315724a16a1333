"""Models that the papers' tables compare and that do not ship: trained once, and kept in the user's cache folder.

CACHE/outrider/trained/KEY/NAME            a model; KEY is of the recipe's content, its target's, seed and tokens
CACHE/outrider/trained/KEY/NAME.partial    a run that was interrupted, and goes on from its checkpoint
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from outrider_bench.core.tables import show_line
from outrider_models.core.embedded import DRAFTERS, drafter_dir, target_dir
from outrider_proto.errors import UsageError

SECOND_TARGET = "target_bias"
SECOND = {f"{recipe}_bias": recipe for recipe in ("moa", "eagle2", "independent")}  # recipes for the second target
ABLATION = ("moa_nolsa", "moa_tli3", "eagle2_wide", "eagle2_deep")
HYDRA = ("hydra_plain", "hydra_labels", "hydra_noise", "hydra_noprefix")
HEADS = ("hass_math", "hass_chat")
# One second target for all seeds of its drafters; and no ordering of heads is claimed, but of ways to route them.
ONCE = (SECOND_TARGET, *HEADS)
TRAINED = (*ABLATION, *HYDRA, *HEADS, SECOND_TARGET, *SECOND)
# Compared with those above: other seeds of them do not ship.
SHIPPED = ("moa", "moa_tli1", "eagle2", "independent", "medusa", "hydra")
_FORMAT = 1  # another number, and everything is trained anew


@dataclass(frozen=True, slots=True)
class RecipeRun:
    """A recipe, or one for the second target, with `seed` added to the recipe's own, on `tokens` (None: its own)."""

    name: str
    seed: int = 0
    tokens: int | None = None

    @property
    def recipe(self) -> str:
        return SECOND.get(self.name, self.name)

    @property
    def target(self) -> RecipeRun | None:
        """The run that trains its target; None: the embedded one. All seeds of a drafter have the same."""
        return RecipeRun(SECOND_TARGET, tokens=self.tokens) if self.name in SECOND else None

    @property
    def ships(self) -> bool:
        return self.name in DRAFTERS and self.seed == 0 and self.tokens is None

    @property
    def key(self) -> str:
        """Depends on all that the result does, but for the code. Raises UsageError for an unknown recipe."""
        target = _embedded_fingerprint() if self.target is None else self.target.key
        content = [_FORMAT, _description(self), target]
        return blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()

    @property
    def directory(self) -> Path:
        from platformdirs import user_cache_path

        return user_cache_path("outrider", appauthor=False) / "trained" / self.key / self.name

    @property
    def num_tokens(self) -> int:
        from outrider_lab.training.recipe import read_recipe, varied

        tokens: int = varied(read_recipe(self.recipe), self.seed, self.tokens).data.total_tokens
        return tokens

    def train(self) -> Path:
        """Train the model, or go on with it, unless it is there already. Raises UsageError, OutriderError."""
        from filelock import FileLock

        from outrider_lab.training.recipe import RecipeOptions, train_recipe
        from outrider_models.training.checkpoint import has_run, remove_checkpoint

        directory = self.directory
        partial = directory.with_name(f"{directory.name}.partial")
        target = None if self.target is None else str(self.target.train())
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{directory.parent}: {error.strerror}") from error
        with FileLock(directory.with_name(f"{directory.name}.lock")):
            if directory.is_dir():
                return directory
            begun = has_run(partial)
            if not begun:
                shutil.rmtree(partial, ignore_errors=True)
            options = RecipeOptions(self.recipe, partial, target, seed=self.seed, tokens=self.tokens)
            train_recipe(options, resume=begun)
            remove_checkpoint(partial)
            partial.rename(directory)
        return directory


@cache
def _embedded_fingerprint() -> str:
    from outrider_drafters.checkpoints.fingerprint import target_fingerprint

    return target_fingerprint(target_dir())


@cache
def _description(run: RecipeRun) -> object:
    from outrider_lab.training.recipe import read_recipe, varied

    return varied(read_recipe(run.recipe), run.seed, run.tokens).description()


def trained_dir(name: str, seed: int = 0, tokens: int | None = None) -> Path:
    """Return the directory of a model of TRAINED, or of any recipe, whether or not it has been trained.

    Seed 0 of a drafter that ships is that one. Raises UsageError for an unknown recipe.
    """
    run = RecipeRun(name, seed, tokens)
    return drafter_dir(name) if run.ships else run.directory


def trained(name: str, seed: int = 0, tokens: int | None = None) -> Path | None:
    """Do as trained_dir(); return None for a model that has not been trained."""
    directory = trained_dir(name, seed, tokens)
    return directory if directory.is_dir() else None


def missing_runs(names: Sequence[str] = (), seeds: int = 1, tokens: int | None = None) -> list[RecipeRun]:
    """Return what is to be trained, targets first. Without names TRAINED, and with several seeds SHIPPED too."""
    chosen = names or (*TRAINED, *(SHIPPED if seeds > 1 else ()))
    runs = dict.fromkeys(run for name in chosen for seed in range(seeds) for run in _with_target(name, seed, tokens))
    return [run for run in runs if trained(run.name, run.seed, run.tokens) is None]


def _with_target(name: str, seed: int, tokens: int | None) -> Iterator[RecipeRun]:
    run = RecipeRun(name, seed, tokens)
    if run.target is not None:
        yield run.target
    if seed == 0 or name not in ONCE:
        yield run


def train_recipes(names: Sequence[str] = (), seeds: int = 1, tokens: int | None = None) -> list[Path]:
    """Train what is missing, one after the other, and return where it is.

    `seeds`: runs of each recipe; `tokens`: of each run, None: the recipe's own. After an interruption the same call
    goes on where it stopped. Raises UsageError.
    """
    if seeds < 1 or (tokens is not None and tokens < 1):
        raise UsageError(f"seeds={seeds}, tokens={tokens}: need 1 or more")
    runs = missing_runs(names, seeds, tokens)
    tokens = sum(run.num_tokens for run in runs)
    show_line(f"models to train: {len(runs)}, on {tokens:,} tokens" if runs else "nothing is left to train")
    made = []
    for number, run in enumerate(runs, 1):
        show_line(f"{number} of {len(runs)}: {run.name}, seed {run.seed}")
        made.append(run.train())
    return made
