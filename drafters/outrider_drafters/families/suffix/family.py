"""The declaration of suffix decoding, which needs no files."""

from outrider_drafters.families.family import Family
from outrider_drafters.families.suffix.drafter import NAME, SuffixDrafter

FAMILY = Family(
    name=NAME,
    features="nothing",
    offline="copies",
    trees="dynamic",
    recognizes=lambda files: False,
    drafter=lambda files, target: SuffixDrafter(target.sizes.vocab),
    tap=lambda files, target, like: None,
    needs_files=False,
)
