"""Families that can be trained, by name: modules with a FAMILY, its settings, loss and the paper's values.

An installed package adds others by entry points of the group `outrider.training`.
"""

from importlib import import_module
from pkgutil import iter_modules

from outrider_drafters.plug_ins import PlugIns
from outrider_models.training.core.family import TrainableFamily
from outrider_proto.errors import UsageError

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
TRAINABLE_FAMILIES: dict[str, TrainableFamily] = {
    module.FAMILY.name: module.FAMILY for module in _MODULES if hasattr(module, "FAMILY")
}
PLUG_INS = PlugIns("outrider.training", TrainableFamily, lambda: TRAINABLE_FAMILIES)


def trainable_names() -> list[str]:
    return [*TRAINABLE_FAMILIES, *PLUG_INS.names]


def trainable_family(name: str) -> TrainableFamily:
    """Return the family of that name. Raises UsageError."""
    family = TRAINABLE_FAMILIES.get(name) or PLUG_INS.get(name)
    if family is None:
        raise UsageError(f"family {name!r}: choose one of {', '.join(trainable_names())}")
    return family
