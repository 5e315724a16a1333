"""Checks of a drafter's state against its contract (contracts.drafter), for the tests of any family.

Each tells two states of one drafter the same tokens and features in different ways and compares their logits.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.trees.grow import JointState, Level, grow_tree
from outrider_drafters.trees.predraft import can_predraft
from outrider_proto.errors import UsageError
from outrider_proto.tree import ROOT, DraftTree

_TREE = DraftTree((2, 5, 7, 1, 4), (ROOT, ROOT, 1, 0, 0))
_MOST_TOKENS = 23  # different ones in a text, so that it repeats itself


def check_drafter(
    drafter: Drafter, *, scripts: int = 20, seed: int = 0, tolerance: float = 1e-3, drafts_what_is_likely: bool = True
) -> None:
    """Raise AssertionError, which says what differs, unless the drafter's states keep the contract.

    Checked is that a state equals a fresh one with the same tokens and features after any appends, features, rollbacks
    and drafts (`scripts` of them, drawn from `seed`); that features may come late, while a draft is made, and one by
    one; that states of several texts do not touch each other; that nodes see their ancestors alone, and levels of
    several texts may run together (`expand_together`); unless `drafts_what_is_likely` is False, that tree_logits is
    what expand gives, and a draft ahead of a verdict that of a text with its outcome; and that misuse is refused.
    Logits may differ by `tolerance`, absolute and relative: float32 needs about 1e-3. The drafter must take a
    vocabulary of at least 8 tokens.
    """
    torch.manual_seed(seed)
    check = _Checker(drafter, tolerance)
    check.has_logits()
    for number in range(scripts):
        check.equals_fresh(_random_script(random.Random(seed + number)), f"script {seed + number}")
    check.forgets()
    check.takes_late_features()
    check.outgrows_buffers()
    check.keeps_texts_apart()
    check.lets_features_wait()
    check.hides_siblings()
    check.runs_together()
    if drafts_what_is_likely:
        check.agrees_with_tree_logits()
        check.drafts_ahead()
    check.refuses_misuse()


@dataclass
class _Text:
    """What a state was told and still holds."""

    tokens: list[int] = field(default_factory=list)
    rows: dict[int, Tensor] = field(default_factory=dict)  # by position

    @property
    def num_features(self) -> int:
        return 1 + max(self.rows, default=-1)

    def tell(self, state: DraftState) -> DraftState:
        """Tell a fresh state at once; rows of neighboring positions go together."""
        state.append(self.tokens)
        for _, run in groupby(enumerate(sorted(self.rows)), key=lambda pair: pair[1] - pair[0]):
            positions = [position for _, position in run]
            state.add_features(positions[0], torch.stack([self.rows[position] for position in positions]))
        return state


_Step = tuple[str, Sequence[int]]


def _random_script(draw: random.Random) -> list[_Step]:
    steps: list[_Step] = []
    for _ in range(24):
        match draw.choice(("append", "append", "features", "features", "rollback", "draft")):
            case "append":
                steps.append(("append", [draw.randrange(_MOST_TOKENS) for _ in range(draw.randint(1, 4))]))
            case "features":
                steps.append(("features", (draw.randint(0, 6), draw.randint(0, 12), draw.randint(0, 3))))
            case "rollback":
                steps.append(("rollback", (draw.randint(0, 8),)))
            case "draft":
                steps.append(("draft", (draw.randint(1, 4),)))
    return steps


class _Checker:
    """One drafter, and what its states are told."""

    def __init__(self, drafter: Drafter, tolerance: float) -> None:
        self._drafter = drafter
        self._tolerance = tolerance

    def has_logits(self) -> None:
        logits = _answers(self._text(6, 5).tell(self._drafter.new_state()), self._level)
        self._close(logits, logits, "a first draft")

    def equals_fresh(self, script: Sequence[_Step], name: str) -> None:
        state = self._drafter.new_state()
        text = self._play(state, script)
        fresh = text.tell(self._drafter.new_state())
        where = f"after {name}, {list(script)}"
        self._same((state.num_tokens, state.num_features), (len(text.tokens), text.num_features), f"size {where}")
        if text.tokens:
            self._agree(state, fresh, f"{where}: not as a fresh state")

    def forgets(self) -> None:
        """Draft, roll back, and go on with other tokens and features beyond the old end."""
        for lacking in (1, 3):
            for dropped in range(6):
                script: list[_Step] = [("append", [1, 2, 3, 4, 5, 6]), ("features", (0, 6 - lacking, 0))]
                script += [("draft", (2,)), ("rollback", (dropped,)), ("append", [7, 1, 0, 3, 2, 6])]
                self.equals_fresh([*script, ("features", (2, 9 - lacking, 0))], "a draft and a rollback")

    def takes_late_features(self) -> None:
        text = self._text(9, num_features=8)
        state = self._drafter.new_state()
        for end in range(3, 10):
            state.append(text.tokens[state.num_tokens : end])
            self._draft(state, 2)
        for position, row in text.rows.items():
            state.add_features(position, row[None])
            self._draft(state, 1)
        self._agree(state, text.tell(self._drafter.new_state()), "features that came late, one by one")

    def outgrows_buffers(self) -> None:
        """A long text, with drafts between that are larger than what is appended."""
        text = self._text(300, num_features=299)
        state = self._drafter.new_state()
        for start in range(0, 300, 20):
            state.append(text.tokens[start : start + 20])
            if state.max_levels:
                grow_tree(state, TreeShape(8, 12, 60))
            rows = [text.rows[position] for position in range(start, min(start + 20, 299))]
            state.add_features(start, torch.stack(rows))
        self._agree(state, text.tell(self._drafter.new_state()), "a text of 300 tokens")

    def keeps_texts_apart(self) -> None:
        texts = self._text(7, 6), self._text(12, 9)
        states = [text.tell(self._drafter.new_state()) for text in texts]
        found = [list[Tensor]() for _ in texts]
        for level in range(3):
            for state, answers in zip(states, found, strict=True):
                if level < state.max_levels:
                    answers.append(self._level(state, level))
        for text, answers in zip(texts, found, strict=True):
            alone = _answers(text.tell(self._drafter.new_state()), self._level)
            self._close(_joined(answers), alone, "a state drafted in turns with that of another text")

    def lets_features_wait(self) -> None:
        texts = [self._text(5, 2)] * 2
        state, twin = (text.tell(self._drafter.new_state()) for text in texts)
        if min(state.max_levels, twin.max_levels) < 2:
            return
        for each in (state, twin):
            self._level(each, 0)
        state.add_features(2, torch.randn(2, self._drafter.tap.width))
        self._close(self._level(state, 1), self._level(twin, 1), "features that came during a draft changed it")

    def hides_siblings(self) -> None:
        text = self._text(6, 5)
        state, other = (text.tell(self._drafter.new_state()) for _ in range(2))
        if state.max_levels < 3:
            return
        for each in (state, other):
            each.root_logits()
        state.expand([4], [ROOT])
        other.expand([2, 4, 7], [ROOT] * 3)
        alone, among = state.expand([6], [0]), other.expand([5, 6, 6], [0, 1, 2])
        self._close(among[1:2], alone, "a node depends on those beside it")

    def runs_together(self) -> None:
        texts = [self._text(7, 6), self._text(12, 9), self._text(4, 3)]
        alone, together = ([text.tell(self._drafter.new_state()) for text in texts] for _ in range(2))
        if not isinstance(together[0], JointState) or min(state.max_levels for state in alone) < 3:
            return
        for state in (*alone, *together):
            state.root_logits()
        for below in (ROOT, 0):
            levels = [Level([2, 5, 7][: number + 1], [below] * (number + 1)) for number in range(3)]
            found = together[0].expand_together(list(zip(together, levels, strict=True)))
            for state, level, logits in zip(alone, levels, found, strict=True):
                self._close(logits, state.expand(level.tokens, level.parents), "levels of several texts in one pass")

    def agrees_with_tree_logits(self) -> None:
        text = self._text(8, 6)
        text.tokens[-3:] = text.tokens[:3]  # it repeats itself, for drafters that copy
        state, other = (text.tell(self._drafter.new_state()) for _ in range(2))
        if state.max_levels < 3:
            return
        expected = [state.root_logits()[None], state.expand(_TREE.tokens[:2], _TREE.parents[:2])]
        expected.append(state.expand(_TREE.tokens[2:], _TREE.parents[2:]))
        self._close(other.tree_logits(_TREE), _joined(expected), "tree_logits is not what expand gives")
        self._agree(other, state, "after tree_logits")

    def drafts_ahead(self) -> None:
        text = self._text(8, 5)
        state = text.tell(self._drafter.new_state())
        if not can_predraft(state):
            return
        state.tree_logits(_TREE)
        below = {ROOT: (), 1: (5,), 3: (2, 1)}
        bonuses, following = (3, 6, 2), (1, 0, 4)
        roots = state.expand(bonuses, list(below))
        levels = state.expand(following, [len(_TREE) + number for number in range(len(below))])
        for number, path in enumerate(below.values()):
            told = _Text([*text.tokens, *path, bonuses[number]], text.rows).tell(self._drafter.new_state())
            expected = _joined([told.root_logits()[None], told.expand(following[number : number + 1], [ROOT])])
            found = torch.stack([torch.as_tensor(roots[number]), torch.as_tensor(levels[number])])
            self._close(found, expected, "a draft ahead of a verdict is not that of a text with this outcome")

    def refuses_misuse(self) -> None:
        drafter, width = self._drafter, self._drafter.tap.width
        state = drafter.new_state()
        with self._refusal("root_logits without a token"):
            state.root_logits()
        state.append([1, 2, 3])
        with self._refusal("features of positions without a token"):
            state.add_features(0, torch.zeros(4, width))
        with self._refusal("features of another width"):
            state.add_features(0, torch.zeros(2, width + 1))
        if not drafter.tap.newest_only:
            with self._refusal("features behind a gap"):
                state.add_features(1, torch.zeros(1, width))
        with self._refusal("a rollback to more tokens than there are"):
            state.rollback(4)
        self._same((state.num_tokens, state.num_features), (3, 0), "what was refused changed the state: its size")

    @contextmanager
    def _refusal(self, what: str) -> Iterator[None]:
        try:
            yield
        except UsageError:
            return
        raise AssertionError(f"{self._drafter.family}: {what}: need a UsageError")

    def _text(self, num_tokens: int, num_features: int) -> _Text:
        draw = random.Random(num_tokens)
        tokens = [draw.randrange(min(_MOST_TOKENS, self._drafter.vocab_size)) for _ in range(num_tokens)]
        rows = torch.randn(num_features, self._drafter.tap.width, generator=torch.Generator().manual_seed(num_tokens))
        return _Text(tokens, dict(enumerate(rows)))

    def _play(self, state: DraftState, script: Sequence[_Step]) -> _Text:
        text, tap = _Text(), self._drafter.tap
        for name, values in script:
            match name:
                case "append":
                    tokens = [value % self._drafter.vocab_size for value in values]
                    state.append(tokens)
                    text.tokens += tokens
                case "features":
                    overlap, more, skipped = values
                    held = text.num_features
                    start = min(held + skipped, len(text.tokens)) if tap.newest_only else held
                    first = max(0, held - overlap) if start == held else start
                    rows = torch.randn(min(more, len(text.tokens) - start), tap.width)
                    # What a state has, it must not take again.
                    state.add_features(first, torch.cat((torch.full((start - first, tap.width), 1e9), rows)))
                    text.rows |= dict(enumerate(rows, start))
                case "rollback":
                    keep = max(0, len(text.tokens) - values[0])
                    state.rollback(keep)
                    del text.tokens[keep:]
                    text.rows = {position: row for position, row in text.rows.items() if position < keep}
                case _:
                    self._draft(state, values[0])
        return text

    def _draft(self, state: DraftState, levels: int) -> None:
        if state.num_tokens:
            grow_tree(state, TreeShape(2, levels, 6))

    def _agree(self, state: DraftState, other: DraftState, what: str) -> None:
        self._same(state.max_levels, other.max_levels, f"max_levels {what}")
        self._close(_answers(state, self._level), _answers(other, self._level), what)

    def _level(self, state: DraftState, number: int) -> Tensor:
        """Draft a level: the root's successors, those of two children, and those of three grandchildren."""
        if number == 0:
            logits = state.root_logits()
            self._same(tuple(logits.shape), (self._drafter.vocab_size,), "shape of root_logits")
            return logits[None]
        nodes = slice(0, 2) if number == 1 else slice(2, 5)
        tokens, parents = _TREE.tokens[nodes], _TREE.parents[nodes]
        logits = state.expand(tokens, parents)
        self._same(tuple(logits.shape), (len(tokens), self._drafter.vocab_size), "shape of expand's logits")
        return logits

    def _close(self, found: Tensor, expected: Tensor, what: str) -> None:
        for logits in (found, expected):
            if bool((logits.isnan() | logits.isposinf()).any()):
                raise AssertionError(f"{self._drafter.family}: {what}: logits hold nan or inf")
        try:
            torch.testing.assert_close(found, expected, atol=self._tolerance, rtol=self._tolerance)
        except AssertionError as error:
            raise AssertionError(f"{self._drafter.family}: {what}: {error}") from None

    def _same(self, found: object, expected: object, what: str) -> None:
        if found != expected:
            raise AssertionError(f"{self._drafter.family}: {what}: {found}, need {expected}")


def _answers(state: DraftState, level: Callable[[DraftState, int], Tensor]) -> Tensor:
    """Return all logits of a draft of three levels, or as many as the state reaches."""
    return _joined([level(state, number) for number in range(min(3, state.max_levels))])


def _joined(levels: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(levels)) if levels else torch.empty(0)
