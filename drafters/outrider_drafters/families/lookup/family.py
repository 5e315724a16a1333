"""Prompt lookup (n-gram drafting): where the end of the text occurred before, copy what followed it then.

    ... the quick fox | jumps over ... the quick fox        the longest suffix of at most `ngram` tokens that occurred
        ^^^^^^^^^^^^^   ^^^^^^^^^^ drafted ^^^^^^^^^^^^^     before with a token after it; of its places the leftmost

Drafts equal those of transformers' PromptLookupCandidateGenerator with max_matching_ngram_size = ngram, and of vLLM's
ngram proposer with prompt_lookup_min = 1 and prompt_lookup_max = ngram. Unlike the former it also drafts an end token,
which the target judges like any other. It needs no files, features or model.
"""

from __future__ import annotations

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreeShape
from outrider_drafters.families.family import Family
from outrider_drafters.families.suffix.family import SuffixDrafter
from outrider_drafters.families.suffix.index import NOTHING, Candidates, GrowingText, matches
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree

NAME = "lookup"
NGRAM = 3
CHAIN = TreeShape.chain(10)  # transformers' prompt_lookup_num_tokens
LONGEST = DrafterOption.whole("ngram", f"longest match to search for, in tokens ({NGRAM})", least=1)


class LookupDrafter(SuffixDrafter):
    """Propose what followed the longest match of the last `shortest` to `ngram` tokens. Raises UsageError."""

    family = NAME

    def __init__(self, vocab_size: int, ngram: int = NGRAM, shortest: int = 1) -> None:
        if ngram < 1:
            raise UsageError(f"{NAME}: ngram={ngram}: need at least 1")
        super().__init__(vocab_size)
        self.ngram, self.shortest, self.plan = ngram, shortest, CHAIN

    def candidates(self, text: GrowingText) -> Candidates:
        longest = next(matches(text, text.tokens[-self.ngram :].tolist(), self.shortest), None)
        if longest is None:
            return NOTHING
        length, places = longest
        copied = tuple(text.tokens[places[0] :][:MAX_LEVELS].tolist())
        return Candidates(DraftTree(copied, tuple(range(-1, len(copied) - 1))), (1.0,) * len(copied), length)


def _load(files: DrafterFiles, target: TargetWeights) -> Drafter:
    ngram = files.options.get(LONGEST)
    return LookupDrafter(target.sizes.vocab, NGRAM if ngram is None else ngram)


FAMILY = Family(
    name=NAME,
    features="nothing",
    offline="copies",
    trees="chain",
    drafter=_load,
    needs_files=False,
    options=(LONGEST,),
)
