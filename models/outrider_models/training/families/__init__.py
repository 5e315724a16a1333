"""Families that can be trained, by name: one module each, with its settings, its loss and the paper's values.

An installed package adds others by entry points of the group `outrider.training`.
"""

from outrider_drafters.plug_ins import PlugIns
from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.families import (
    dflash,
    dspark,
    eagle2,
    eagle3,
    hass,
    hydra,
    independent,
    medusa,
    moa,
    peagle,
)
from outrider_proto.errors import UsageError

_ALL = (moa, eagle2, hass, eagle3, medusa, hydra, dflash, dspark, peagle, independent)
TRAINABLE_FAMILIES: dict[str, TrainableFamily] = {family.FAMILY.name: family.FAMILY for family in _ALL}
PLUG_INS = PlugIns("outrider.training", TrainableFamily, lambda: TRAINABLE_FAMILIES)


def trainable_names() -> list[str]:
    return [*TRAINABLE_FAMILIES, *PLUG_INS.names]


def trainable_family(name: str) -> TrainableFamily:
    """Return the family of that name. Raises UsageError."""
    family = TRAINABLE_FAMILIES.get(name) or PLUG_INS.get(name)
    if family is None:
        raise UsageError(f"family {name!r}: choose one of {', '.join(trainable_names())}")
    return family
