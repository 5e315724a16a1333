"""All families, in the order in which a directory is offered to them: the first that recognises it takes it."""

from __future__ import annotations

from outrider_drafters import eagle2, eagle3, independent, lookup, moa_family
from outrider_drafters.family import Family

FAMILIES: tuple[Family, ...] = (moa_family.FAMILY, eagle3.FAMILY, eagle2.FAMILY, lookup.FAMILY, independent.FAMILY)
