"""Recipes of the embedded models: all settings of a training run, read from TOML and checked once.

A recipe is complete: every key is required, so that no change of a default can change it.
"""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from outrider_models.core.tables import Table, build, need_at_least, read_toml
from outrider_models.corpus.sample import EXERCISES, FAMILIES
from outrider_models.training.families import TRAINABLE_FAMILIES
from outrider_proto.errors import UsageError


@dataclass(frozen=True, slots=True)
class Exercise:
    """Copying exercises in the training stream, from `begin` on, in a share that falls linearly to 0 at `end`."""

    kind: str
    share: float  # of samples
    begin: float  # share of the run, as all below
    end: float

    def __post_init__(self) -> None:
        if self.kind not in EXERCISES:
            raise UsageError(f"exercise {self.kind!r}: choose one of {', '.join(EXERCISES)}")
        if not (0 <= self.share < 1 and 0 <= self.begin < self.end):
            raise UsageError(f"{self}: need 0 <= share < 1 and 0 <= begin < end")

    def share_at(self, progress: float) -> float:
        if not self.begin <= progress < self.end:
            return 0.0
        return self.share * (self.end - progress) / (self.end - self.begin)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of the training stream."""

    seed: int
    shard_samples: int
    batch_tokens: int
    total_tokens: int
    prompt_weight: float
    family_weights: dict[str, float]
    exercises: tuple[Exercise, ...]

    def __post_init__(self) -> None:
        need_at_least(self, 1, "shard_samples", "batch_tokens", "total_tokens")
        if unknown := sorted(set(self.family_weights) - set(FAMILIES)):
            raise UsageError(f"family_weights: unknown families {', '.join(unknown)}; choose of {', '.join(FAMILIES)}")
        if not any(weight > 0 for weight in self.family_weights.values()):
            raise UsageError("family_weights: at least one must be above 0")


@dataclass(frozen=True, slots=True)
class Rates:
    """Optimizers and schedule; learning rates are those of the flat part."""

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


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Sizes of a Llama target with tied embeddings."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    max_positions: int
    rope_theta: float
    embedding_std: float  # initial; with transformers' 0.02 the layers drown the tokens' identity
    tokenizer_samples: int  # of each family, to train the tokenizer on

    def __post_init__(self) -> None:
        need_at_least(self, 1, "vocab_size", "num_layers", "num_heads", "num_kv_heads", "tokenizer_samples")
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}: "
                "each must be a multiple of the next"
            )


@dataclass(frozen=True, slots=True)
class TargetRecipe:
    shape: TargetShape
    stream: StreamSettings
    rates: Rates


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    family: str
    settings: Any  # Any: the dataclass of the family (training/families)
    stream: StreamSettings
    rates: Rates


Recipe = TargetRecipe | DrafterRecipe
_RUN = {"stream": StreamSettings, "rates": Rates}


def read_recipe(name_or_path: str) -> Recipe:
    """Read a shipped recipe (`target`, `moa`, ...) or a file (`my/recipe.toml`). Raises UsageError."""
    return parse_recipe(_read_table(name_or_path))


def parse_recipe(table: Table) -> Recipe:
    """Build the recipe of a table; tables other than `stream` and `rates` are the family's settings.

    Raises UsageError that names the key.
    """
    kind = table.get("kind")
    if kind not in ("target", *TRAINABLE_FAMILIES):
        raise UsageError(f"recipe: kind={kind!r}: choose one of target, {', '.join(TRAINABLE_FAMILIES)}")
    rest = {name: value for name, value in table.items() if name != "kind"}
    if kind == "target":
        return build(TargetRecipe, rest, "recipe")
    if missing := [name for name in _RUN if name not in rest]:
        raise UsageError(f"recipe: missing keys {', '.join(missing)}")
    stream, rates = (
        build(StreamSettings, rest.pop("stream"), "recipe.stream"),
        build(Rates, rest.pop("rates"), "recipe.rates"),
    )
    return DrafterRecipe(str(kind), build(TRAINABLE_FAMILIES[str(kind)].settings, rest, "recipe"), stream, rates)


def _read_table(name_or_path: str) -> Table:
    if name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        if path.exists():
            return read_toml(path)
    elif name_or_path in shipped_recipes():
        return read_toml(Path(str(resources.files("outrider_models") / "recipes" / f"{name_or_path}.toml")))
    raise UsageError(f"recipe {name_or_path!r}: no such file, and no shipped recipe of that name")


def shipped_recipes() -> list[str]:
    """Return the names of the recipes in the package."""
    found = (resources.files("outrider_models") / "recipes").iterdir()
    return sorted(path.name.removesuffix(".toml") for path in found if path.name.endswith(".toml"))
