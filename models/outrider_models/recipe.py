"""Recipes: everything that a training run depends on, read from TOML and checked once.

A recipe is complete: every key is required, so that no default can change under it.
"""

import tomllib
from dataclasses import dataclass, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from outrider_models.corpus.sample import EXERCISES, FAMILIES
from outrider_proto.errors import UsageError

_Table = TypeVar("_Table")


@dataclass(frozen=True, slots=True)
class Exercise:
    """Copying practice mixed into the families: from `begin` on, as a share that falls linearly to nothing at `end`."""

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
class Stream:
    """What is read, in which order."""

    seed: int
    shard_samples: int
    batch_tokens: int
    total_tokens: int
    prompt_weight: float
    family_weights: dict[str, float]
    exercises: tuple[Exercise, ...]

    def __post_init__(self) -> None:
        _at_least_one(self, "shard_samples", "batch_tokens", "total_tokens")
        if unknown := sorted(set(self.family_weights) - set(FAMILIES)):
            raise UsageError(f"family_weights: unknown families {', '.join(unknown)}; choose of {', '.join(FAMILIES)}")
        if not any(weight > 0 for weight in self.family_weights.values()):
            raise UsageError("family_weights: at least one must be above 0")


@dataclass(frozen=True, slots=True)
class Rates:
    """Optimisers and schedule; learning rates are those of the flat part."""

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
        """Share of the flat rates at `progress`: a trapezoid, up, flat, and linearly down to zero."""
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
    embedding_std: float  # at the start; with transformers' 0.02 the layers drown the tokens' identity
    tokenizer_samples: int  # of each family, to train the tokenizer on

    def __post_init__(self) -> None:
        _at_least_one(self, "vocab_size", "num_layers", "num_heads", "num_kv_heads", "tokenizer_samples")
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}: "
                "each must be a multiple of the next"
            )


@dataclass(frozen=True, slots=True)
class TargetRecipe:
    shape: TargetShape
    stream: Stream
    rates: Rates


@dataclass(frozen=True, slots=True)
class MoaShape:
    """Sizes of MoA's three layers; widths follow from the target."""

    layer_kv_heads: int
    layer_intermediate: int
    self_kv_heads: int
    self_intermediate: int
    cross_kv_heads: int
    cross_intermediate: int


@dataclass(frozen=True, slots=True)
class EagleShape:
    """Sizes of EAGLE-2's one layer."""

    kv_heads: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class Losses:
    """Weights of the two terms, both over reply positions."""

    divergence: float  # cross-entropy against the target's distribution
    feature: float  # smooth L1 against the target's last hidden state


@dataclass(frozen=True, slots=True)
class Blocks:
    """MoA's bounded mask: how many tokens the drafter goes without news from the target."""

    shortest: int
    longest: int
    blind_share: float  # of samples whose last block reaches from a drawn place to the end

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise UsageError(f"blocks: shortest={self.shortest}, longest={self.longest}: need 1 <= shortest <= longest")


@dataclass(frozen=True, slots=True)
class MoaRecipe:
    shape: MoaShape
    blocks: Blocks
    losses: Losses
    stream: Stream
    rates: Rates


@dataclass(frozen=True, slots=True)
class EagleRecipe:
    shape: EagleShape
    losses: Losses
    stream: Stream
    rates: Rates


Recipe = TargetRecipe | MoaRecipe | EagleRecipe
_KINDS: dict[str, type[Recipe]] = {"target": TargetRecipe, "moa": MoaRecipe, "eagle2": EagleRecipe}


def read_recipe(name_or_path: str) -> Recipe:
    """A shipped recipe (`target`, `moa`, `eagle2`) or a file (`my/recipe.toml`). Raises UsageError."""
    return parse_recipe(_read_table(name_or_path))


def parse_recipe(table: dict[str, Any]) -> Recipe:  # Any: as TOML gives it
    """The recipe of a table; `kind` says which. Raises UsageError that names the key."""
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UsageError(f"recipe: kind={kind!r}: choose one of {', '.join(_KINDS)}")
    return _build(_KINDS[kind], {name: value for name, value in table.items() if name != "kind"}, "recipe")


def _read_table(name_or_path: str) -> dict[str, Any]:  # Any: as above
    shipped = resources.files("outrider_models") / "recipes" / f"{name_or_path}.toml"
    source = Path(name_or_path)
    try:
        text = source.read_text() if source.suffix == ".toml" else shipped.read_text()
        return tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"recipe {name_or_path!r}: no such file, and no shipped recipe of that name") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"recipe {name_or_path!r}: {error}") from None


def _build(kind: type[_Table], table: Any, where: str) -> _Table:  # Any: whatever stood in the file
    if not isinstance(table, dict):
        raise UsageError(f"{where}={table!r}: need a table")
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass, always
    if unknown := sorted(set(table) - set(names)):
        raise UsageError(f"{where}: unknown keys {', '.join(unknown)}")
    if missing := [name for name in names if name not in table]:
        raise UsageError(f"{where}: missing keys {', '.join(missing)}")
    return kind(**{name: _value(hints[name], table[name], f"{where}.{name}") for name in names})


def _value(kind: Any, value: Any, where: str) -> Any:  # Any: a type, and whatever stood in the file
    if is_dataclass(kind):
        return _build(kind, value, where)  # type: ignore[arg-type]  # a class, not an instance
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise UsageError(f"{where}={value!r}: need a list of tables")
        return tuple(_value(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{where}={value!r}: need a table")
        return {name: _value(get_args(kind)[1], item, f"{where}.{name}") for name, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{where}={value!r}: need a value of type {kind.__name__}")
    return value


def _at_least_one(table: object, *names: str) -> None:
    for name in names:
        if getattr(table, name) < 1:
            raise UsageError(f"{name}={getattr(table, name)}: need at least 1")
