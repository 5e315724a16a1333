"""Configuration of a run, from one of two sources.

On chats it is what the family's paper says, with changes. A recipe of the embedded models is complete: every key is
required, so that no change of a default can change it.
"""

from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from outrider_models.core.tables import Table, build, need_at_least, read_toml, with_changes
from outrider_models.training.core.interfaces import TargetFacts
from outrider_models.training.core.rates import Length, Rates, Schedule
from outrider_models.training.data.chat_file import ChatSettings
from outrider_models.training.data.corpus import CorpusSettings
from outrider_models.training.families import trainable_family, trainable_names
from outrider_models.training.target import TargetShape
from outrider_proto.errors import UsageError

Precision = Literal["auto", "bf16", "no"]
TARGET = "target"


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Settings of the machine; the result does not depend on them."""

    part: int  # texts per pass on one device, whose gradients add up to an update's; 0: all of an update
    precision: Precision  # auto: bf16 where the GPU or processor computes in it
    features: str  # directory of the target's outputs; auto: in --out, for this run; no: computed in every pass
    features_gb: float  # of that directory; what does not fit is computed in every pass
    checkpoint_updates: int  # 0: only at the end

    def __post_init__(self) -> None:
        need_at_least(self, 0, "part", "checkpoint_updates", "features_gb")


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """Validation by drafting chains of `levels` tokens along the target's greedy text after held-out prompts."""

    every_updates: int  # 0: only at the end
    new_tokens: int  # length of the target's text per prompt
    levels: int

    def __post_init__(self) -> None:
        need_at_least(self, 0, "every_updates")
        need_at_least(self, 2, "new_tokens")
        need_at_least(self, 1, "levels")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """All settings of a run; `machine` and `validation` do not change its result."""

    family: str  # or TARGET
    drafter: Any  # Any: the family's settings, or a TargetShape
    data: ChatSettings | CorpusSettings
    length: Length | None  # None: a corpus says it
    schedule: Schedule | Rates
    machine: MachineSettings
    validation: ValidationSettings

    def description(self) -> dict[str, Any]:  # Any: JSON values
        """Return the settings that the result depends on."""
        return {name: value for name, value in asdict(self).items() if name not in ("machine", "validation")}

    def varied(self, seed: int, tokens: int | None) -> Self:
        """Return a recipe with `seed` added to its own, and with so many tokens. Raises UsageError."""
        assert isinstance(self.data, CorpusSettings)
        data = replace(self.data, seed=self.data.seed + seed, total_tokens=tokens or self.data.total_tokens)
        return replace(self, data=data)


_ON_CHATS: dict[str, Any] = {  # Any: one dataclass each
    "data": ChatSettings(max_length=2048, held_out=32, seed=0, limit=0, questions=False),
    "machine": MachineSettings(part=1, precision="auto", features="auto", features_gb=20.0, checkpoint_updates=500),
    "validation": ValidationSettings(every_updates=500, new_tokens=128, levels=5),
}
_IN_RECIPES: dict[str, Any] = {  # Any: as above
    "machine": MachineSettings(part=0, precision="no", features="no", features_gb=0.0, checkpoint_updates=200),
    "validation": ValidationSettings(every_updates=300, new_tokens=64, levels=5),
}


def make_train_config(family: str, target: TargetFacts, changes: Table) -> TrainConfig:
    """Apply changes to the family's defaults for a target. Raises UsageError that names the key."""
    known = trainable_family(family)
    defaults = {"drafter": known.defaults(target), "schedule": known.schedule, "length": known.length, **_ON_CHATS}
    if unknown := sorted(set(changes) - set(defaults)):
        raise UsageError(f"settings: unknown tables {', '.join(unknown)}; there are {', '.join(defaults)}")
    tables = {name: with_changes(value, _table(changes, name), name) for name, value in defaults.items()}
    return TrainConfig(family=family, **tables)


def read_recipe(name_or_path: str) -> TrainConfig:
    """Read a shipped recipe (`target`, `moa`, ...) or a file (`my/recipe.toml`). Raises UsageError."""
    if name_or_path.endswith(".toml") and Path(name_or_path).exists():
        return parse_recipe(read_toml(Path(name_or_path)))
    if name_or_path in shipped_recipes():
        return parse_recipe(
            read_toml(Path(str(resources.files("outrider_models") / "recipes" / f"{name_or_path}.toml")))
        )
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
    found = (resources.files("outrider_models") / "recipes").iterdir()
    return sorted(path.name.removesuffix(".toml") for path in found if path.name.endswith(".toml"))


@dataclass(frozen=True, slots=True)
class _TargetTables:
    shape: TargetShape


def _table(changes: Table, name: str) -> Table:
    table = changes.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"settings: {name}={table!r}: need a table, as in {name}.KEY=VALUE")
    return table
