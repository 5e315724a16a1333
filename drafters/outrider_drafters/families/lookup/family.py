"""The declaration of prompt lookup, which needs no files."""

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.families.family import Family
from outrider_drafters.families.lookup.drafter import NAME, NGRAM, LookupDrafter

LONGEST = DrafterOption.whole("ngram", f"longest match to search for, in tokens ({NGRAM})", least=1)


def _load(files: DrafterFiles, target: TargetWeights) -> Drafter:
    ngram = files.options.get(LONGEST)
    return LookupDrafter(target.sizes.vocab, NGRAM if ngram is None else ngram)


FAMILY = Family(
    name=NAME,
    features="nothing",
    offline="copies",
    trees="chain",
    recognizes=lambda files: False,
    drafter=_load,
    tap=lambda files, target, like: None,
    needs_files=False,
    options=(LONGEST,),
)
