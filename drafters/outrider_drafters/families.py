"""All families, in the order in which a directory is offered to them: the first that recognises it takes it."""

from __future__ import annotations

from outrider_drafters import lookup, mtp
from outrider_drafters.dflash import family as dflash
from outrider_drafters.eagle import eagle2, eagle3
from outrider_drafters.family import Family
from outrider_drafters.heads import hydra_family, medusa
from outrider_drafters.independent import family as independent
from outrider_drafters.moa import family as moa_family

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
