"""Configuration of a run on chats: what the family's paper says, with changes."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from outrider_models.core.tables import Table, with_changes
from outrider_models.training.core.interfaces import TargetFacts
from outrider_models.training.core.rates import Length
from outrider_models.training.data.chat_file import ChatSettings
from outrider_models.training.families import trainable_family
from outrider_proto.errors import UsageError

Precision = Literal["auto", "bf16", "no"]


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Settings of the machine; the result does not depend on them."""

    part: NonNegativeInt  # texts per pass on one device, whose gradients add up to an update's; 0: all of an update
    precision: Precision  # auto: bf16 where the GPU or processor computes in it
    features: str  # directory of the target's outputs; auto: in --out, for this run; no: computed in every pass
    features_gb: NonNegativeFloat  # of that directory; what does not fit is computed in every pass
    checkpoint_updates: NonNegativeInt  # 0: only at the end


@dataclass(frozen=True, slots=True)
class ValidationSettings:
    """Validation by drafting chains of `levels` tokens along the target's greedy text after held-out prompts."""

    every_updates: NonNegativeInt  # 0: only at the end
    new_tokens: Annotated[int, Field(ge=2)]  # length of the target's text per prompt
    levels: PositiveInt


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """All settings of a run; `machine` and `validation` do not change its result."""

    family: str
    drafter: Any  # Any: the family's settings
    data: Any  # Any: settings of the source of texts
    length: Length | None  # None: the source says it
    schedule: Any  # Any: the optimizer's settings: `clip_norm`, and `make_optimizer` for a network
    machine: MachineSettings
    validation: ValidationSettings

    def description(self) -> dict[str, Any]:  # Any: JSON values
        """Return the settings that the result depends on."""
        return {name: value for name, value in asdict(self).items() if name not in ("machine", "validation")}


_ON_CHATS: dict[str, Any] = {  # Any: one dataclass each
    "data": ChatSettings(max_length=2048, held_out=32, seed=0, limit=0, questions=False),
    "machine": MachineSettings(part=1, precision="auto", features="auto", features_gb=20.0, checkpoint_updates=500),
    "validation": ValidationSettings(every_updates=500, new_tokens=128, levels=5),
}


def make_train_config(family: str, target: TargetFacts, changes: Table) -> TrainConfig:
    """Apply changes to the family's defaults for a target. Raises UsageError that names the key."""
    known = trainable_family(family)
    defaults = {"drafter": known.defaults(target), "schedule": known.schedule, "length": known.length, **_ON_CHATS}
    if unknown := sorted(set(changes) - set(defaults)):
        raise UsageError(f"settings: unknown tables {', '.join(unknown)}; there are {', '.join(defaults)}")
    tables = {name: with_changes(value, changes.get(name, {}), name) for name, value in defaults.items()}
    return TrainConfig(family=family, **tables)
