"""The families that can be trained, by name: one file each, with its settings, its loss and the paper's values."""

from outrider_models.training.families import eagle2, hass, moa
from outrider_models.training.families.family import Trainable
from outrider_proto.errors import UsageError

TRAINABLES = {one.name: one for one in (moa.TRAINABLE, eagle2.TRAINABLE, hass.TRAINABLE)}


def trainable(name: str) -> Trainable:
    """The family of that name. Raises UsageError."""
    if name not in TRAINABLES:
        raise UsageError(f"family {name!r}: the ones that can be trained are {', '.join(TRAINABLES)}")
    return TRAINABLES[name]
