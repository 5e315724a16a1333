"""All families, in the order in which a directory is offered to them: the first that recognizes it takes it."""

from __future__ import annotations

from outrider_drafters.families.dflash import family as dflash
from outrider_drafters.families.eagle2 import family as eagle2
from outrider_drafters.families.eagle3 import family as eagle3
from outrider_drafters.families.family import Family
from outrider_drafters.families.hydra import family as hydra_family
from outrider_drafters.families.independent import family as independent
from outrider_drafters.families.lookup import family as lookup
from outrider_drafters.families.medusa import family as medusa
from outrider_drafters.families.moa import family as moa_family
from outrider_drafters.families.mtp import family as mtp

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
