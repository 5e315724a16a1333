"""Where the end of a text occurred before, and what followed it there. Knows no torch.

SuffixDecoding (NeurIPS 2025, arXiv 2411.04975) keeps suffix trees; here are the texts themselves and, for each token,
the places behind it. A pattern's places are found from its last token backwards, a token at a time:

    ... a b | c d ...      places behind b:        3 of them
    ... x b | e           ... of which behind a b: 2
    ... a b | c f ...     what follows these:      c twice, then d or f

That is the same as a suffix tree's count of a path, takes as little memory as the texts, and a rollback is a cut.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outrider_proto.tree import ROOT, DraftTree

LONGEST = 24  # tokens of a pattern: as vLLM's depth of its suffix trees
MAX_NODES = 32  # of a candidate tree
_PER_TOKEN = 2  # nodes for each token of the pattern: the paper's alpha (section 4.2), there 1 to 4
LEAST = 0.1  # probability of a path, as in ArcticInference's suffix decoding
# Occurrences that what was not seen yet counts as, behind a pattern of one token; behind p tokens 1/p of that. Chosen
# so that in trees with a head's guesses the probabilities came to what was accepted (SmolLM2).
_OPEN = 2.0
_COUNTED = 1024  # newest places of a pattern of which the next token is counted
_SEPARATOR = -1  # between the texts of a history; no token

Ints = NDArray[np.int32]


class Texts(Protocol):
    """Tokens, and where to find them."""

    shortest: int  # tokens of a pattern whose places it knows: longer ones are found from these

    @property
    def tokens(self) -> Ints: ...

    def places(self, pattern: Sequence[int]) -> NDArray[np.int64]:
        """Return the positions behind a pattern of `shortest` tokens, rising; not the text's own end."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What followed a pattern, as a draft tree; `probabilities` are those of each node's whole path."""

    tree: DraftTree
    probabilities: tuple[float, ...]
    pattern_len: int

    @property
    def score(self) -> float:
        """Expected number of accepted tokens, by the counts."""
        return sum(self.probabilities)


NOTHING = Candidates(DraftTree(), (), 0)


class CandidateRows:
    """The candidates of one draft as a draft state asks for them: what follows each draft row."""

    def __init__(self) -> None:
        self._followers: dict[int, dict[int, int]] = {}  # of each node: its children by their tokens
        self._probabilities: tuple[float, ...] = ()
        self._nodes: list[int | None] = []  # of each draft row; None: it is none of the candidates

    def begin(self, drafted: Candidates) -> dict[int, float]:
        """Start a draft; return the probabilities of the tokens after the root, which may come to less than 1."""
        self._followers.clear()
        for node, (token, parent) in enumerate(zip(drafted.tree.tokens, drafted.tree.parents, strict=True)):
            self._followers.setdefault(parent, {})[token] = node
        self._probabilities = drafted.probabilities
        self._nodes.clear()
        return self._after(ROOT)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> list[dict[int, float]]:
        """Return the probabilities of the tokens after each of the next draft rows; none after other tokens."""
        for token, parent in zip(tokens, parents, strict=True):
            above = ROOT if parent == ROOT else self._nodes[parent]
            self._nodes.append(None if above is None else self._followers.get(above, {}).get(token))
        return [{} if node is None else self._after(node) for node in self._nodes[len(self._nodes) - len(tokens) :]]

    def _after(self, node: int) -> dict[int, float]:
        before = 1.0 if node == ROOT else self._probabilities[node]
        return {token: self._probabilities[after] / before for token, after in self._followers.get(node, {}).items()}


class GrowingText:
    """One text that grows and is rolled back; both take the same few steps for each token."""

    shortest = 1

    def __init__(self) -> None:
        self._buffer: Ints = np.empty(256, np.int32)
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        self._length = 0
        self.counted: tuple[int, History | None, Candidates] | None = None  # what `candidates` found last, and for what

    @property
    def tokens(self) -> Ints:
        return self._buffer[: self._length]

    def append(self, tokens: Sequence[int]) -> None:
        self.counted = None
        length = self._length + len(tokens)
        if length > len(self._buffer):
            self._buffer = np.concatenate((self.tokens, np.empty(length, np.int32)))
        self._buffer[self._length : length] = tokens
        for place, token in enumerate(tokens, self._length + 1):
            self._places[token].append(place)
        self._length = length

    def rollback(self, length: int) -> None:
        self.counted = None
        for token in self._buffer[length : self._length].tolist():
            places = self._places[token]
            places.pop()
            if not places:
                del self._places[token]
        self._length = length

    def places(self, pattern: Sequence[int]) -> NDArray[np.int64]:
        found = self._places.get(pattern[-1], [])
        return np.array(found[:-1] if found and found[-1] == self._length else found, np.int64)


class History:
    """Texts that do not change any more, found by pairs of tokens: a frequent token alone is at too many places."""

    shortest = 2

    def __init__(self, texts: Sequence[Sequence[int] | Ints] = ()) -> None:
        self.tokens: Ints = np.concatenate(
            [np.empty(0, np.int32)] + [np.array([*text, _SEPARATOR], np.int32) for text in texts]
        )
        pairs: NDArray[np.int64] = _pair(self.tokens[:-1].astype(np.int64), self.tokens[1:])
        self._order = np.argsort(pairs, kind="stable").astype(np.int32)
        self._pairs = pairs[self._order]

    @property
    def num_bytes(self) -> int:
        return self.tokens.nbytes + self._order.nbytes + self._pairs.nbytes

    def places(self, pattern: Sequence[int]) -> NDArray[np.int64]:
        first, end = np.searchsorted(self._pairs, (_pair(*pattern), _pair(*pattern) + 1))
        return self._order[first:end].astype(np.int64) + 2


def _pair(token: Any, after: Any) -> Any:  # Any: both are numbers, or both arrays
    return (token << 32) + after


_READABLE: ContextVar[History | None] = ContextVar("history", default=None)


@contextmanager
def reading(history: History | None) -> Iterator[None]:
    """Let what is drafted within, in this thread, come from `history`, too. Elsewhere no draft reads any."""
    # Not an attribute of the drafter, which several clients share: whoever drafts on private text must not read it,
    # and does not unless it says so here.
    token = _READABLE.set(history)
    try:
        yield
    finally:
        _READABLE.reset(token)


def candidates(text: GrowingText, shortest: int = 1) -> Candidates:
    """Return the best candidate tree of all patterns of `shortest` tokens or more that the text ends with.

    For each pattern of p tokens, here and in the history, the likeliest paths are counted, to alpha p nodes; the tree
    of the largest score is the best, of equals that of the longest pattern (the paper's section 4.2 and 4.3).
    """
    history = _READABLE.get()
    # A draft asks for them at every level. Not for those of another history: it may be one that must not be read now.
    if text.counted is not None and text.counted[0] == shortest and text.counted[1] is history:
        return text.counted[2]
    pattern = text.tokens[-LONGEST:].tolist()
    best = NOTHING
    for texts in (text,) if history is None else (text, history):
        for length, places in matches(texts, pattern, shortest):
            counted = _counted(texts.tokens, places, length)
            if counted.score > best.score:
                best = counted
    text.counted = shortest, history, best
    return best


def matches(texts: Texts, pattern: Sequence[int], shortest: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield lengths and places of all patterns that differ in their places, the longest first."""
    length = texts.shortest
    if len(pattern) < length:
        return
    tokens, places = texts.tokens, texts.places(pattern[-length:])
    found = []
    while len(places):
        longer = places[:0]
        if length < len(pattern):
            # A place that close to the beginning would wrap around, to the text's end.
            longer = places[places > length]
            longer = longer[tokens[longer - (length + 1)] == pattern[-length - 1]]
        # With the same places a longer pattern's tree is the same, and may be larger.
        if length >= shortest and len(longer) < len(places):
            found.append((length, places))
        places, length = longer, length + 1
    yield from reversed(found)


def _counted(tokens: Ints, places: NDArray[np.int64], length: int) -> Candidates:
    """Count the likeliest paths from `places` on, which a pattern of `length` tokens precedes."""
    budget = min(_PER_TOKEN * length, MAX_NODES)
    chosen: list[int] = []
    parents: list[int] = []
    probabilities: list[float] = []
    # The likeliest first, of equals the one found first.
    queue: list[tuple[float, int, int, int, NDArray[np.int64]]] = []
    found = itertools.count()

    def look_behind(node: int, probability: float, places: NDArray[np.int64]) -> None:
        known = length + (0 if node == ROOT else depths[node])
        for token, count, after in _following(tokens, places):
            # The share of the counts, less what a pattern that short leaves open.
            likely = probability * count / (len(places) + _OPEN / known)
            if likely >= LEAST:
                heapq.heappush(queue, (-likely, next(found), node, token, after))

    depths: list[int] = []
    look_behind(ROOT, 1.0, places[-_COUNTED:])
    while queue and len(chosen) < budget:
        unlikely, _, parent, token, after = heapq.heappop(queue)
        chosen.append(token)
        parents.append(parent)
        probabilities.append(-unlikely)
        depths.append(1 if parent == ROOT else depths[parent] + 1)
        look_behind(len(chosen) - 1, -unlikely, after)
    return Candidates(DraftTree(tuple(chosen), tuple(parents)), tuple(probabilities), length)


def _following(tokens: Ints, places: NDArray[np.int64]) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Return the tokens at `places`, how many they are, and the places behind each; the most frequent first."""
    if len(places) == 1:  # nearly always
        place = int(places[0])
        is_end = place >= len(tokens) or tokens[place] == _SEPARATOR
        return [] if is_end else [(int(tokens[place]), 1, places + 1)]
    places = places[places < len(tokens)]
    following = tokens[places]
    counts = Counter(following[::-1].tolist())  # of equals the newest first
    counts.pop(_SEPARATOR, None)
    return [(token, count, places[following == token] + 1) for token, count in counts.most_common()]
