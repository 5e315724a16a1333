"""The families that can be trained, by name: one file each, with its settings, its loss and the paper's values."""

from outrider_models.training.core.family import Trainable
from outrider_models.training.families import eagle2, eagle3, hass, hydra, independent, medusa, moa
from outrider_proto.errors import UsageError

_ALL = (moa, eagle2, hass, eagle3, medusa, hydra, independent)
TRAINABLES: dict[str, Trainable] = {family.TRAINABLE.name: family.TRAINABLE for family in _ALL}


def trainable(name: str) -> Trainable:
    """The family of that name. Raises UsageError."""
    if name not in TRAINABLES:
        raise UsageError(f"family {name!r}: the ones that can be trained are {', '.join(TRAINABLES)}")
    return TRAINABLES[name]
