"""The client's own drafting in one answer: drafts of its heads, tokens written offline, and verdicts on the drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from outrider_client.core.statistics import Meter
from outrider_client.drafting.drafting_thread import AheadDraft, AsyncDrafter, PreDraftSpec, Ready
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_drafters.contracts.tree_shape import TreePlan
from outrider_drafters.routing.confidence import best_path
from outrider_drafters.routing.routed_drafter import RoutedDraft
from outrider_drafters.trees.grow import ScoredTree
from outrider_proto.frames import Sampling, Verdict
from outrider_proto.packing import common_prefix_len
from outrider_proto.tree import DraftTree

RECENT = 64  # newest tokens searched for keywords, in addition to the prompt
OF_PROMPT = 1024  # and the last tokens of the prompt


class LocalDrafter:
    """Drafts, and writes without the target: by `drafting` or `writing`, or by `fallback_drafter` where neither can."""

    def __init__(
        self,
        models: LocalModels,
        drafting: AsyncDrafter | None,
        writing: AsyncDrafter | None,
        fallback_drafter: AsyncDrafter | None,
        meter: Meter,
        acceptance_check: AcceptanceCheck,
    ) -> None:
        self._models = models
        self._drafting = drafting
        self._writing = writing
        self._fallback_drafter = fallback_drafter
        self._meter = meter
        self._acceptance_check = acceptance_check
        self._prompt_text = ""  # for keywords
        self._prompt_len = 0
        self._rules: AnswerRules | None = None

    @property
    def can_write(self) -> bool:
        return self._writer is not None or self._fallback_drafter is not None

    @property
    def _writer(self) -> AsyncDrafter | None:
        """Who may write on: the drafter, if it was measured to with the features that it has now, or another one."""
        models, drafting = self._models, self._drafting
        if drafting is not None and models.writes != "no":
            has_features = bool(drafting.tap.fingerprint) and drafting.num_features >= self._prompt_len
            if has_features or models.writer is models.drafter:
                return drafting
        return self._writing

    def begin(self, prompt: Sequence[int], rules: AnswerRules | None) -> None:
        self._rules, self._prompt_len = rules, len(prompt)
        if self._models.keywords is not None:
            self._prompt_text = self._models.decode(prompt[-OF_PROMPT:])

    @property
    def head(self) -> int:
        """Index of the head in use."""
        return 0 if self._drafting is None else self._drafting.current

    async def draft(self, tokens: Sequence[int], num_new: int, plan: TreePlan) -> RoutedDraft:
        """Draft on `tokens`, of which the last `num_new` belong to the answer, within its rules."""
        assert self._drafting is not None
        head, keywords = None, self._models.keywords
        if keywords is not None:
            recent = self._models.decode(tokens[-min(num_new, RECENT) :])
            head = keywords.choose(f"{self._prompt_text}\n{recent}", self._drafting.current)
        self._meter.drafted_stale(len(tokens) - 1 - self._drafting.num_features)
        routed = await self._drafting.grow(tokens, plan, head)
        self._meter.heads.drafted(routed)
        return replace(routed, drafted=self.within_rules(tokens, routed.drafted))

    def draft_ahead(self, tokens: Sequence[int], tree: DraftTree, wanted: PreDraftSpec, ready: Ready) -> AheadDraft:
        """Draft for the outcomes of `tree` below `tokens`, once `ready` returns."""
        drafting = self._drafting
        assert drafting is not None

        async def begin() -> None:
            await ready()
            # Only now: the rows that it waited for are no longer missing.
            self._meter.drafted_stale(len(tokens) - 1 - drafting.num_features)

        return drafting.draft_ahead(tokens, tree, wanted, begin)

    def within_rules(self, text: Sequence[int], drafted: ScoredTree) -> ScoredTree:
        """Return what of a draft below `text` the answer's rules allow: the rest need not travel."""
        if self._rules is None:
            return drafted
        return drafted.part(self._rules.allowed(text[self._rules.answer_from :], drafted.tree))

    async def write(self, tokens: Sequence[int], sampling: Sampling, *, may_copy: bool) -> int | None:
        """Write the next token by the writer, or else by the fallback drafter; None if neither can within the rules.

        Without `may_copy` nothing is copied from the text so far.
        """
        token = None
        if (writer := self._writer) is not None and (may_copy or not self._models.only_copies):
            token = await writer.write(tokens, sampling, self._rules)
        if token is None and may_copy and self._fallback_drafter is not None:
            token = await self._fallback_drafter.write(tokens, sampling, self._rules)
            if token is not None:
                self._meter.copied += 1
        return token

    def judge(self, drafted: ScoredTree, head: int, verdict: Verdict) -> str | None:
        """Count a verdict on a head's draft; return a warning if the head does not fit the target."""
        assert self._drafting is not None
        tree = drafted.tree
        self._meter.judged(len(tree), len(verdict.path))
        self._meter.heads.judged(drafted, verdict.path)
        approved = [tree.tokens[node] for node in verdict.path]
        if verdict.bonus is not None:
            approved.append(verdict.bonus)
        likeliest = [tree.tokens[node] for node in best_path(drafted)]
        return self._acceptance_check.judged(self._drafting.names[head], likeliest, approved) if approved else None


NUM_VERDICTS = 64
CHANCE = 0.02  # with large vocabularies; with small ones twice the chance of a uniform guess
FEW = 0.05  # accepted of the tokens drafted, where a head's files leave open how to read it
CHECK = "Check that it was made for this target, and what its files may not state: layout, RoPE base, tapped layers"


class AcceptanceCheck:
    """Checks whether each head fits its target, over all answers of a client, and warns once.

    A head for another model, or one read in a wrong layout, loads without an error and drafts nonsense: its likeliest
    token is the target's no more often than by chance. Over 64 verdicts, a head that is right one time in ten, which
    hardly pays, is reported as at chance with probability 1 %. A head with a hint, which says how else it may be read,
    gets the warning already where less than 5 % of its likeliest tokens are accepted.
    """

    def __init__(self, vocab_size: int, hints: Mapping[str, str] | None = None) -> None:
        self._chance = max(CHANCE, 2 / vocab_size)
        self._hints = hints or {}
        self._verdicts: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    def judged(self, head: str, likeliest: Sequence[int], approved: Sequence[int]) -> str | None:
        """Count a head's likeliest tokens against the target's; return a warning if the head does not fit."""
        self._verdicts[head] += 1
        self._hits[head] += likeliest[0] == approved[0]
        self._drafted[head] += len(likeliest)
        self._accepted[head] += common_prefix_len(likeliest, approved)
        hits, hint = self._hits[head], self._hints.get(head)
        accepted, drafted = self._accepted[head], self._drafted[head]
        is_at_chance, are_few = hits <= self._chance * NUM_VERDICTS, accepted < FEW * drafted
        if self._verdicts[head] != NUM_VERDICTS or not (is_at_chance or (hint and are_few)):
            return None
        remedy = f"If it was made for this target, {hint}" if hint else CHECK
        return (
            f"drafter {head}: its likeliest token was the target's in {hits} of {NUM_VERDICTS} verdicts, and of its"
            f" {drafted} likeliest tokens {accepted} were accepted, about as many as by chance. {remedy}"
        )
