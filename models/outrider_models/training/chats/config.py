"""Configuration of a run on chats: the family's settings and all others, defaults of its paper with changes."""

from dataclasses import dataclass
from typing import Any, Literal

from outrider_models.core.tables import Table, need_at_least, with_changes
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.core.interfaces import TargetFacts
from outrider_models.training.core.rates import Length, Schedule
from outrider_proto.errors import UsageError

Precision = Literal["auto", "bf16", "no"]


@dataclass(frozen=True, slots=True)
class DataSettings:
    max_length: int  # tokens of a chat; longer chats are cut
    held_out: int  # chats kept for validation, at most a tenth of all
    seed: int

    def __post_init__(self) -> None:
        need_at_least(self, 2, "max_length")
        need_at_least(self, 0, "held_out")


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Settings of the machine; the result does not depend on them."""

    part: int  # chats per pass on one device; gradients accumulate over length.batch chats
    precision: Precision  # auto: bf16 on a GPU that has it
    checkpoint_updates: int  # 0: only at the end

    def __post_init__(self) -> None:
        need_at_least(self, 1, "part")
        need_at_least(self, 0, "checkpoint_updates")


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
    family: TrainableFamily
    drafter: Any  # Any: the family's settings
    schedule: Schedule
    length: Length
    data: DataSettings
    machine: MachineSettings
    validation: ValidationSettings


_COMMON: dict[str, Any] = {  # Any: one dataclass each
    "data": DataSettings(max_length=2048, held_out=32, seed=0),
    "machine": MachineSettings(part=1, precision="auto", checkpoint_updates=500),
    "validation": ValidationSettings(every_updates=500, new_tokens=128, levels=5),
}


def make_train_config(family: TrainableFamily, target: TargetFacts, changes: Table) -> TrainConfig:
    """Apply changes to the family's defaults for a target. Raises UsageError that names the key."""
    defaults = {
        "drafter": family.defaults(target),
        "schedule": family.schedule,
        "length": family.length,
        **_COMMON,
    }
    if unknown := sorted(set(changes) - set(defaults)):
        raise UsageError(f"settings: unknown tables {', '.join(unknown)}; there are {', '.join(defaults)}")
    tables = {name: with_changes(value, _table(changes, name), name) for name, value in defaults.items()}
    return TrainConfig(family=family, **tables)


def _table(changes: Table, name: str) -> Table:
    table = changes.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"settings: {name}={table!r}: need a table, as in {name}.KEY=VALUE")
    return table
