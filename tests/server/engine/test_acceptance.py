"""The walks: greedy and typical by example, sampling by its law, whatever was drafted."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats

from outrider_proto.frames import Finish, Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import AcceptedPath, verify_path, verify_typical
from outrider_server.engine.sampler import Sampler

#            root 9
#           /      \
#          0:4      1:5
#         /   \       \
#       2:6   3:7     4:6
TREE = DraftTree((4, 5, 6, 7, 6), (-1, -1, 0, 0, 1))


def judged(chosen: list[int], eos: set[int], max_depth: int = 9) -> AcceptedPath:
    """chosen[0] is the target's token after the root, chosen[1 + i] the one after node i."""
    return verify_path(TREE, lambda node: chosen[1 + node], eos, max_depth)


FALSE_ALARM = 1e-4  # per chi-square test, for a right implementation; seeds are fixed


@pytest.mark.parametrize(
    ("chosen", "max_depth", "expected"),
    [
        ([8, 0, 0, 0, 0, 0], 9, AcceptedPath((), 8, Finish.NOT_YET)),
        ([4, 7, 0, 0, 8, 0], 9, AcceptedPath((0, 3), 8, Finish.NOT_YET)),
        ([5, 0, 6, 0, 0, 8], 9, AcceptedPath((1, 4), 8, Finish.NOT_YET)),
        ([5, 0, 7, 0, 0, 8], 9, AcceptedPath((1,), 7, Finish.NOT_YET)),
        ([2, 0, 0, 0, 0, 0], 9, AcceptedPath((), 2, Finish.EOS)),
        ([4, 2, 0, 0, 0, 0], 9, AcceptedPath((0,), 2, Finish.EOS)),
        ([4, 7, 0, 0, 8, 0], 2, AcceptedPath((0, 3), 8, Finish.CONTEXT_FULL)),
        ([4, 7, 0, 0, 8, 0], 1, AcceptedPath((0,), 7, Finish.CONTEXT_FULL)),
        ([4, 7, 0, 0, 8, 0], 0, AcceptedPath((), 4, Finish.CONTEXT_FULL)),
    ],
)
def test_the_walk_follows_the_chosen_tokens_as_far_as_the_context_goes(chosen, max_depth, expected):
    assert judged(chosen, {2}, max_depth) == expected


def test_an_accepted_end_of_text_ends_the_path_without_bonus():
    assert judged([5, 0, 6, 0, 0, 8], {6}) == AcceptedPath((1, 4), None, Finish.EOS)


VOCAB = 4
WORDS = 3


def language(seed: int) -> dict[tuple[int, ...], torch.Tensor]:
    """Logits of the next token after every text of up to WORDS tokens."""
    generator = torch.Generator().manual_seed(seed)
    texts = [text for n in range(WORDS + 1) for text in itertools.product(range(VOCAB), repeat=n)]
    return {text: torch.randn(VOCAB, generator=generator) * 1.5 for text in texts}


def drafted(rng: np.random.Generator, text: tuple[int, ...]) -> DraftTree:
    """Something that looks like a drafter's work: depends on the text, differs from call to call."""
    tokens: list[int] = []
    parents: list[int] = []
    for parent in (-1, -1, 0, 0, 1):
        token = int(rng.integers(VOCAB))
        if parent < len(tokens) and (parent, token) not in zip(parents, tokens, strict=True):
            tokens.append(token)
            parents.append(parent)
    return DraftTree(tuple(tokens), tuple(parents))


def drawn(logits, sampler: Sampler, ends: list[tuple[int, ...]], node: int) -> int:
    end = ends[1 + node]
    return sampler.choose(logits[end[:WORDS]][None], [len(end)])[0]


def speculate(logits, sampling: Sampling, draft) -> tuple[int, ...]:
    """WORDS tokens by cycles of drafting, choosing and walking."""
    sampler = Sampler(sampling)
    text: tuple[int, ...] = ()
    while len(text) < WORDS:
        tree = draft(text)
        ends = [text, *(text + tuple(tree.tokens[i] for i in np.flatnonzero(row)) for row in tree.ancestors())]
        verdict = verify_path(tree, partial(drawn, logits, sampler, ends), (), 99)
        text = (*text, *tree.path_tokens(verdict.path), verdict.bonus)
    return text[:WORDS]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.2, top_p=0.8)])
def test_speculative_sampling_has_the_law_of_the_target(sampling):
    logits, law = language(4), Sampler(sampling)
    rng = np.random.default_rng(0)
    count = 1000
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(count):
        seeded = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed)
        text = speculate(logits, seeded, lambda text: drafted(rng, text))
        seen[text] = seen.get(text, 0) + 1
    expected = {}
    for text in itertools.product(range(VOCAB), repeat=WORDS):
        steps = [law.distribution(logits[text[:i]][None])[0, text[i]].item() for i in range(WORDS)]
        expected[text] = float(np.prod(steps)) * count
    assert all(expected[text] > 0 for text in seen)
    # Texts expected fewer than 5 times are pooled, as the chi-square approximation asks.
    rare = [text for text, n in expected.items() if n < 5]
    observed = [seen.get(text, 0) for text in expected if text not in rare] + [sum(seen.get(t, 0) for t in rare)]
    wanted = [n for text, n in expected.items() if text not in rare] + [sum(expected[t] for t in rare)]
    if wanted[-1] == 0:
        observed.pop(), wanted.pop()
    assert stats.chisquare(observed, wanted).pvalue > FALSE_ALARM


# -- typical ----------------------------------------------------------------------------------------------------------

REJECTED = -math.inf


def typically(log_probs: list[float], eos: set[int] = frozenset(), max_depth: int = 9) -> AcceptedPath:
    """The bonus says where it was chosen: 100 after the root, 101 after node 0, ..."""
    return verify_typical(TREE, log_probs, lambda node: 101 + node, eos, max_depth)


@pytest.mark.parametrize(
    ("log_probs", "path"),
    [
        ([REJECTED] * 5, ()),
        ([-9.0, -0.1, REJECTED, REJECTED, REJECTED], (1,)),  # equally long: the likelier
        ([-0.1, -9.0, REJECTED, REJECTED, -9.0], (1, 4)),  # longer beats likelier
        ([REJECTED, -1.0, -0.1, -0.1, REJECTED], (1,)),  # nothing below a rejected node
        ([-1.0, -2.0, -3.0, -2.0, -2.0], (0, 3)),
        ([-1.0, -2.0, -3.0, -4.0, -1.5], (1, 4)),  # the whole path counts, not its end
        ([-1.0, -1.0, -1.0, -1.0, -1.0], (1, 4)),  # alike in all: the published code lists the last leaf first
        ([-1.0, -1.0, REJECTED, REJECTED, REJECTED], (1,)),
    ],
)
def test_typical_takes_the_likeliest_of_the_longest_paths(log_probs, path):
    assert typically(log_probs) == AcceptedPath(path, 101 + path[-1] if path else 100, Finish.NOT_YET)


def test_typical_stops_at_an_end_of_text_and_at_the_end_of_the_context():
    assert typically([-1.0] * 5, eos={6}) == AcceptedPath((1, 4), None, Finish.EOS)
    assert typically([-1.0, -9.0, -1.0, -1.0, -1.0], eos={5}) == AcceptedPath(
        (0, 3), 104, Finish.NOT_YET
    )  # nothing below it
    assert typically([-1.0, -9.0, REJECTED, REJECTED, REJECTED], eos={101}) == AcceptedPath((0,), 101, Finish.EOS)
    assert typically([-2.0, -1.0, -1.0, -1.0, -1.0], max_depth=1) == AcceptedPath((1,), 102, Finish.CONTEXT_FULL)
    assert typically([-1.0] * 5, max_depth=0) == AcceptedPath((), 100, Finish.CONTEXT_FULL)
