"""Families that can be trained, by name. Each has one module with its settings, its loss and the paper's values."""

from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.families import dflash, dspark, eagle2, eagle3, hass, hydra, independent, medusa, moa
from outrider_proto.errors import UsageError

_ALL = (moa, eagle2, hass, eagle3, medusa, hydra, dflash, dspark, independent)
TRAINABLE_FAMILIES: dict[str, TrainableFamily] = {family.FAMILY.name: family.FAMILY for family in _ALL}


def trainable_family(name: str) -> TrainableFamily:
    """Return the family of that name. Raises UsageError."""
    if name not in TRAINABLE_FAMILIES:
        raise UsageError(f"family {name!r}: choose one of {', '.join(TRAINABLE_FAMILIES)}")
    return TRAINABLE_FAMILIES[name]
