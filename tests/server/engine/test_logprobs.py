"""Log probabilities with verdicts: those of the target's own softmax."""

import numpy as np
import pytest
import torch
from talk import TAP, conversing, serving, text_of
from tiny_targets import VOCAB, build, random_tokens, tree_around

from outrider_proto.errors import Violation
from outrider_proto.frames import MIN_LOGPROB, Finish, Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.acceptance import AcceptedPath
from outrider_server.engine.sampler import token_logprobs
from outrider_server.sessions.verifier import Verifier

TOLERANCE = 2e-5  # of float32 logits whose sums run in another order
RNG = np.random.default_rng(4)
PROMPT = random_tokens(RNG, 12)
HAVE = len(PROMPT)
SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(0.7, top_k=9, top_p=0.8, seed=3),
    "typical": Sampling(0.9, acceptance="typical"),
}


@pytest.fixture(scope="module")
def plain():
    """The model by itself: log_softmax of a plain forward pass, [token, vocab]; row p says what follows token p."""
    model = build("llama")

    def of(tokens) -> torch.Tensor:
        with torch.inference_mode():
            return model(torch.tensor([list(tokens)])).logits[0].double().log_softmax(-1)

    return of


def session(verifier: Verifier, sampling: Sampling = SAMPLINGS["greedy"]):
    return conversing(verifier, sampling=sampling, tap=TAP)


def check(given, rows: torch.Tensor, words, num_top: int) -> None:
    """`rows` say what follows, in the places of `words`."""
    assert len(given) == len(words) > 0
    for entry, row, word in zip(given, rows[: len(words)], words, strict=True):
        assert entry.logprob == pytest.approx(row[word].item(), abs=TOLERANCE)
        best, ids = row.topk(num_top)
        assert [token for token, _ in entry.top] == ids.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("rule", SAMPLINGS)
async def test_a_drafts_path_and_bonus(plain, rule):
    """Raw ones, whatever the session samples with."""
    async with serving() as verifier, session(verifier, SAMPLINGS[rule]) as talk:
        text = [*PROMPT, (await talk.prompt(PROMPT)).bonus]
        async with session(verifier, SAMPLINGS[rule]) as other:
            ahead = [*PROMPT, *text_of(await other.decode(0, PROMPT[:-1], PROMPT[-1], 50))]
        deepest = 0
        for num_top in (0, 1, 5, 20, 3, 2):
            tree = tree_around(RNG, ahead[len(text) :], 6, 8)
            verdict = await talk.verdict(len(text) - 1, (), text[-1], tree, logprobs=num_top)
            words = [*tree.path_tokens(verdict.path), *([] if verdict.bonus is None else [verdict.bonus])]
            check(verdict.logprobs, plain([*text, *words])[len(text) - 1 :], words, num_top)
            text += words
            deepest = max(deepest, len(verdict.path))
        assert deepest >= 2


def test_of_impossible_tokens_and_small_vocabularies():
    logits = torch.tensor([[0.0, -torch.inf, 1.0]])
    (one,) = token_logprobs(logits, DraftTree(), AcceptedPath((), 1, Finish.NOT_YET), 20)
    assert one.logprob == MIN_LOGPROB
    assert [token for token, _ in one.top] == [2, 0, 1]
    assert one.top[2][1] == MIN_LOGPROB
    with pytest.raises(Violation, match="logprob=nan"):
        token_logprobs(torch.full((1, VOCAB), torch.nan), DraftTree(), AcceptedPath((), 1, Finish.NOT_YET), 0)
