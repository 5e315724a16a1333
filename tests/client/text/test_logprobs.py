"""Log probabilities as a caller gets them: the target's own log_softmax, token by token, in every mode and through
outages; and what a server may not send."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Backoff
from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import RolledBack, Verified
from outrider_client.text.logprobs import TokenLogprobs
from outrider_client.text.transcript import Transcript
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_netsim import Link, profile_named
from outrider_proto.errors import Violation
from outrider_proto.frames import TokenLogprob, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.engine.hf_model import eager_attention
from outrider_server.engine.load import load_drafters
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import slow
from ..answers import golden_config, oracle, plain, through_an_outage

NEW = 40
PROMPT = (3, 7, 11, 2, 9)
TOLERANCE = 2e-5  # of float32 logits whose sums run in another order
MODES = ["stream", "server-draft", "stop-and-wait", "proactive", "pipelined", "auto"]
SAMPLED = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 5}


@pytest.fixture
def config(golden) -> ClientConfig:
    quick = Backoff(first_s=0.001, cap_s=0.002)
    return golden_config(golden, max_new_tokens=NEW, shape=TreeShape(4, 4, 14), backoff=quick, logprobs=3)


def verifier_for(config: ClientConfig) -> Verifier:
    target, tap, drafters = served(str(config.target), str(config.drafter))
    return Verifier(target, [tap], drafters=drafters)


@functools.cache
def served(target: str, drafter: str):
    loaded = Target.load(target)
    return loaded, load_tap(drafter, target), load_drafters(loaded, target, [drafter])


def plain_logprobs(config: ClientConfig, answer) -> torch.Tensor:
    """[token of the answer, vocab] by one plain forward pass."""
    model = oracle(config.target).model
    with torch.inference_mode(), eager_attention(model):
        logits = model(torch.tensor([[*PROMPT, *answer]]), use_cache=False).logits[0]
    return logits.double().log_softmax(-1)[len(PROMPT) - 1 : -1]


def check(config: ClientConfig, tokens, logprobs, num_top: int) -> int:
    """Check the log probabilities that are there; return how many tokens have none."""
    assert len(tokens) == len(logprobs)
    for token, given, row in zip(tokens, logprobs, plain_logprobs(config, tokens), strict=True):
        if given is not None:
            assert given.token == token
            assert given.logprob == pytest.approx(row[token].item(), abs=TOLERANCE)
            best, ids = row.topk(num_top)
            assert [one for one, _ in given.top] == ids.tolist()
            assert [value for _, value in given.top] == pytest.approx(best.tolist(), abs=TOLERANCE)
    return logprobs.count(None)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
async def test_every_mode_over_grpc(config, sampling):
    async with (
        Server(verifier_for(config)) as server,
        AsyncClient(dataclasses.replace(config, server=server.address)) as client,
    ):
        answers = [await client.complete(PROMPT, mode=mode, **sampling) for mode in MODES]
    for answer in answers:
        assert len(answer.token_ids) == NEW
        assert answer.token_ids == answers[0].token_ids
        assert check(config, answer.token_ids, answer.logprobs, 3) == 0
    assert any("accepted" in answer.origins for answer in answers)
    if not sampling:
        assert answers[0].token_ids == plain(config.target, PROMPT, NEW)


@pytest.mark.parametrize("mode", ["stream", "stop-and-wait", *slow("server-draft", "proactive", "pipelined")])
async def test_tokens_that_are_verified_after_an_outage_get_theirs(config, mode):
    async with (
        Server(verifier_for(config)) as server,
        Link(profile_named("paper-5g"), server.address, "proxy", seed=1) as link,
        AsyncClient(dataclasses.replace(config, server=link.address)) as client,
    ):
        events, _ = await through_an_outage(client, link, PROMPT, 10, 5, mode=mode)
    written = AnswerText()
    for event in events:
        written.take(event)
    assert events[-1].statistics.outages == 1
    assert written.token_ids == plain(config.target, PROMPT, NEW)
    assert check(config, written.token_ids, written.logprobs, 3) == 0
    assert any(isinstance(event, Verified) for event in events) or any(isinstance(e, RolledBack) for e in events)
    for event in events:
        if isinstance(event, Verified):
            assert len(event.logprobs) == event.count


VOCAB = 64
GOOD = tuple(TokenLogprob(-0.5, ((token, -0.5), (1, -2.0))) for token in (8, 9, 20))


def judged(logprobs, *, asked: int | None = 2, max_new_tokens: int = 9, vocab: int = VOCAB):
    transcript = Transcript()
    transcript.begin((5, 6), max_new_tokens, asked)
    draft = transcript.next_draft(DraftTree.chain((8, 9)), 0)
    return transcript.apply(Verdict(draft.seq, (0, 1), 20, logprobs=logprobs), vocab)


def test_a_verdict_is_joined_with_its_tokens_as_far_as_there_is_room():
    expected = tuple(TokenLogprobs(token, -0.5, ((token, -0.5), (1, -2.0))) for token in (8, 9, 20))
    assert judged(GOOD).logprobs == expected
    assert judged(GOOD, max_new_tokens=2).logprobs == expected[:2]
    assert judged((), asked=None).logprobs == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"logprobs": ()}, "log probabilities of 0 tokens in a verdict that should have 3"),
        ({"logprobs": GOOD[:2]}, "log probabilities of 2 tokens in a verdict that should have 3"),
        ({"logprobs": GOOD, "asked": None}, "log probabilities of 3 tokens in a verdict that should have 0"),
        ({"logprobs": GOOD, "asked": 1}, "2 likeliest tokens where 1"),
        ({"logprobs": GOOD, "asked": 3}, "2 likeliest tokens where 3"),
        ({"logprobs": (*GOOD[:2], TokenLogprob(-1.0, ((VOCAB, -1.0), (1, -2.0))))}, "token 64 among the likeliest"),
    ],
)
def test_a_verdict_that_is_not_what_was_asked_for(wrong, message):
    with pytest.raises(Violation, match=message):
        judged(**wrong)
