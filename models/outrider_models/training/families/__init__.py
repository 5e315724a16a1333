"""The families that can be trained, by name: one file each, with its settings, its loss and the paper's values."""

from outrider_models.training.core.family import TrainableFamily
from outrider_models.training.families import eagle2, eagle3, hass, hydra, independent, medusa, moa
from outrider_proto.errors import UsageError

_ALL = (moa, eagle2, hass, eagle3, medusa, hydra, independent)
TRAINABLE_FAMILIES: dict[str, TrainableFamily] = {family.FAMILY.name: family.FAMILY for family in _ALL}


def trainable_family(name: str) -> TrainableFamily:
    """The family of that name. Raises UsageError."""
    if name not in TRAINABLE_FAMILIES:
        raise UsageError(f"family {name!r}: the ones that can be trained are {', '.join(TRAINABLE_FAMILIES)}")
    return TRAINABLE_FAMILIES[name]
