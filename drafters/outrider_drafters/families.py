"""All families, in the order in which a directory is offered to them: the first that recognises it takes it."""

from __future__ import annotations

from outrider_drafters import dflash, eagle2, eagle3, hydra_family, independent, lookup, medusa, moa_family, mtp
from outrider_drafters.family import Family

FAMILIES: tuple[Family, ...] = (
    mtp.FAMILY,
    dflash.FAMILY,
    hydra_family.FAMILY,
    medusa.FAMILY,
    moa_family.FAMILY,
    eagle3.FAMILY,
    eagle2.FAMILY,
    lookup.FAMILY,
    independent.FAMILY,
)
