"""Recipes of the embedded models: complete configurations of a training on the generated corpus.

Every key is required, so that no change of a default can change a recipe.
"""

import functools
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from tokenizers import Tokenizer
from torch import nn

from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_lab.training.corpus_source import CorpusSettings, CorpusSource
from outrider_lab.training.target import TargetShape, TargetTask, target_tokenizer
from outrider_lab.training.tokenizer import SPECIALS, special_id
from outrider_models.core.embedded import target_source
from outrider_models.core.tables import Table, build, read_toml
from outrider_models.training.config import MachineSettings, TrainConfig, ValidationSettings
from outrider_models.training.core.optimizer import Optimizer
from outrider_models.training.families import trainable_family, trainable_names
from outrider_models.training.train import DrafterTask, Launch, describe, initial_weights
from outrider_models.training.trainer import Task, Trainer, TrainingJob
from outrider_proto.errors import UsageError

TARGET = "target"  # the family of a recipe that trains one
_IN_RECIPES: dict[str, Any] = {  # Any: as above
    "machine": MachineSettings(part=0, precision="no", features="no", features_gb=0.0, checkpoint_updates=200),
    "validation": ValidationSettings(every_updates=300, new_tokens=64, levels=5),
}


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """Options of one run of a recipe. `target` and `start` are for drafters only."""

    recipe: str
    out: Path
    target: str | None = None  # directory or hub name; None: the embedded target
    start: str | None = None  # source of the initial weights; None: random ones
    minutes: float | None = None
    seed: int = 0  # added to the recipe's own
    tokens: int | None = None  # to read; None: as many as the recipe says


@dataclass(frozen=True, slots=True)
class Rates:
    """Muon and AdamW of a recipe; learning rates are those of the flat part."""

    muon_lr: float
    adamw_lr: float
    weight_decay: float
    clip_norm: float
    warmup: float  # share of the run
    decay: float  # share of the run, at its end

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.decay < 0 or self.warmup + self.decay > 1:
            raise UsageError(f"warmup={self.warmup} and decay={self.decay}: need shares that are together at most 1")

    def factor(self, progress: float) -> float:
        """Return the share of the full rates at `progress`: a trapezoid that ends at 0."""
        # Above 0 from the start, or the first step would be wasted.
        rising = progress / self.warmup + 1e-3 if self.warmup else 1.0
        falling = (1 - progress) / self.decay if self.decay else 1.0
        return max(0.0, min(1.0, rising, falling))

    def make_optimizer(self, network: nn.Module) -> Optimizer:
        return Optimizer(network, self.muon_lr, self.adamw_lr, self.weight_decay)


def train_recipe(
    options: RecipeOptions,
    *,
    resume: bool = False,
    console: Console | None = None,
    stop_after_updates: int | None = None,
) -> Trainer:
    """Train to the end and return the trainer. Raises UsageError before anything is written."""
    budget_s = options.minutes * 60 if options.minutes else None
    # The leader goes on with the seed of the weights: so the shipped drafters were trained.
    launch = Launch(
        options.recipe,
        options.out,
        reseed_leader=False,
        stop_after_updates=stop_after_updates,
        budget_s=budget_s,
    )
    return launch.train(functools.partial(_job_of, options), resume=resume, console=console)


def _job_of(options: RecipeOptions) -> TrainingJob:
    config = varied(read_recipe(options.recipe), options.seed, options.tokens)
    return recipe_job(config, options.target, options.start)


def recipe_job(config: TrainConfig, target_name: str | None = None, start_source: str | None = None) -> TrainingJob:
    """Build what a recipe trains. Raises UsageError."""
    data, rates = config.data, config.schedule
    assert isinstance(data, CorpusSettings)
    assert isinstance(rates, Rates)
    if config.family == TARGET:
        if target_name or start_source:
            raise UsageError("target and start are for drafters: this recipe trains a target")
        shape: TargetShape = config.drafter
        tokenizer = target_tokenizer(shape, data.seed)
        task: Task = TargetTask(shape, tokenizer, data.seed, data.prompt_weight)
        source, target, start = CorpusSource(data, tokenizer), None, None
    else:
        target, start = resolve_dir(target_source(target_name)), initial_weights(start_source)
        source = CorpusSource(data, _corpus_tokenizer(target))
        task = DrafterTask(config, target, source, start)
    description = describe(config, target, start)
    return TrainingJob(config, source, task, lambda _, progress: rates.factor(progress), description)


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


def varied(recipe: TrainConfig, seed: int, tokens: int | None) -> TrainConfig:
    """Return a recipe with `seed` added to its own, and with so many tokens. Raises UsageError."""
    data = replace(recipe.data, seed=recipe.data.seed + seed, total_tokens=tokens or recipe.data.total_tokens)
    return replace(recipe, data=data)


def read_recipe(name_or_path: str) -> TrainConfig:
    """Read a shipped recipe (`target`, `moa`, ...) or a file (`my/recipe.toml`). Raises UsageError."""
    if name_or_path.endswith(".toml") and Path(name_or_path).exists():
        return parse_recipe(read_toml(Path(name_or_path)))
    if name_or_path in shipped_recipes():
        return parse_recipe(read_toml(Path(str(resources.files("outrider_lab") / "recipes" / f"{name_or_path}.toml"))))
    raise UsageError(f"recipe {name_or_path!r}: no such file, and no shipped recipe of that name")


def parse_recipe(table: Table) -> TrainConfig:
    """Build the configuration of a recipe; all but `kind`, `stream` and `rates` are the family's settings.

    Raises UsageError that names the key.
    """
    kind = table.get("kind")
    if kind not in (TARGET, *trainable_names()):
        raise UsageError(f"recipe: kind={kind!r}: choose one of target, {', '.join(trainable_names())}")
    if missing := [name for name in ("stream", "rates") if name not in table]:
        raise UsageError(f"recipe: missing keys {', '.join(missing)}")
    rest = {name: value for name, value in table.items() if name not in ("kind", "stream", "rates")}
    settings: Any = build(_TargetTables if kind == TARGET else trainable_family(str(kind)).settings, rest, "recipe")
    return TrainConfig(
        str(kind),
        settings.shape if isinstance(settings, _TargetTables) else settings,
        build(CorpusSettings, table["stream"], "recipe.stream"),
        None,
        build(Rates, table["rates"], "recipe.rates"),
        **_IN_RECIPES,
    )


def shipped_recipes() -> list[str]:
    """Return the names of the recipes in the package."""
    found = (resources.files("outrider_lab") / "recipes").iterdir()
    return sorted(path.name.removesuffix(".toml") for path in found if path.name.endswith(".toml"))


@dataclass(frozen=True, slots=True)
class _TargetTables:
    shape: TargetShape
