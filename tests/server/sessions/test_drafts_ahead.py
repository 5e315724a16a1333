"""Drafts sent ahead of the verdict they build on: verified where that came true, answered stale where it did not."""

from hashlib import blake2b

import numpy as np
import pytest
from talk import NO_TREE, TAP, started, talking
from tiny_targets import build, random_tokens, target, tree_around

from outrider_proto import packing
from outrider_proto.errors import Reason
from outrider_proto.frames import Draft, Finish, Sampling, Verdict
from outrider_proto.packing import pack_tokens, prefix_hash
from outrider_proto.tree import DraftTree
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.sessions.verifier import Verifier

PROMPT = random_tokens(np.random.default_rng(1), 12)
HAVE = len(PROMPT)


@pytest.fixture
async def verifier():
    verifier = Verifier(target(), [TAP])
    await verifier.start()
    yield verifier
    await verifier.stop()


@pytest.fixture(scope="module")
def truth() -> list[int]:
    return plain_greedy(target(), PROMPT, 60)


def ahead(seq: int, answer: list[int], tree: DraftTree = NO_TREE, prompt: list[int] = PROMPT, **changes) -> Draft:
    """A draft below the last token of `answer`, before anybody said that it stands."""
    tokens = [*prompt, *answer]
    fields = {"base_len": len(tokens) - 1, "context": (), "assumes": prefix_hash(tokens)} | changes
    return Draft(seq, root=answer[-1], tree=tree, **fields)


def stale(seq: int) -> Verdict:
    return Verdict(seq, (), None, stale=True)


async def begun(talk, verifier, **how) -> None:
    """A session whose prompt is being processed as draft 1."""
    await talk.open(verifier.describe(), **how)
    await talk.draft(0, PROMPT[:-1], PROMPT[-1])


async def test_a_draft_whose_assumption_comes_true_is_verified(verifier, truth):
    async with talking(verifier) as talk:
        await begun(talk, verifier, tap=TAP.info.fingerprint)
        await talk.send(ahead(2, truth[:1], DraftTree.chain([*truth[1:4], 60]), features_from=HAVE))
        await talk.send(ahead(3, truth[:5], DraftTree.chain(truth[5:7]), features_from=HAVE + 4))
        frames = [await talk.receive() for _ in range(6)]
        verdicts = {frame.seq: frame for frame in frames if isinstance(frame, Verdict)}
        rows = {frame.seq: (frame.first, len(frame.rows)) for frame in frames if not isinstance(frame, Verdict)}
        assert [verdicts[seq].path for seq in (1, 2, 3)] == [(), (0, 1, 2), (0, 1)]
        assert [verdicts[seq].bonus for seq in (1, 2, 3)] == [truth[0], truth[4], truth[7]]
        assert rows == {1: (0, HAVE), 2: (HAVE, 4), 3: (HAVE + 4, 3)}
        assert not any(verdict.stale for verdict in verdicts.values())


WRONG = [
    ("another bonus", lambda truth: ahead(2, [(truth[0] + 1) % 61])),
    ("another prefix", lambda truth: ahead(2, truth[:1], prompt=[(PROMPT[0] + 1) % 61, *PROMPT[1:]])),
    ("too little of the text", lambda truth: ahead(2, truth[:1], prompt=PROMPT[:-1])),
    ("too much of the text", lambda truth: ahead(2, truth[:2])),
    ("a hash of something else", lambda truth: ahead(2, truth[:1], assumes=bytes(8))),
    ("another root than was hashed", lambda truth: ahead(2, [5], assumes=prefix_hash([*PROMPT, truth[0]]))),
    ("a place before what is held", lambda truth: ahead(2, truth[:1], base_len=3)),
]


@pytest.mark.parametrize("draft", [make for _, make in WRONG], ids=[name for name, _ in WRONG])
async def test_a_wrong_assumption_is_answered_stale_and_changes_nothing(verifier, truth, draft, monkeypatch):
    passes = []
    engine = verifier._engine_loop._passes._engine
    launch = engine.launch
    monkeypatch.setattr(engine, "launch", lambda inputs: passes.append(len(inputs)) or launch(inputs))
    async with talking(verifier) as talk:
        await begun(talk, verifier, tap=TAP.info.fingerprint)
        await talk.send(draft(truth))
        frames = [await talk.receive() for _ in range(3)]
        assert stale(2) in frames
        assert len(passes) == 1
        await talk.send(ahead(3, truth[:1], DraftTree.chain(truth[1:4]), features_from=HAVE))
        verdict, features = await talk.receive(), await talk.receive()
        assert (verdict.path, verdict.bonus) == ((0, 1, 2), truth[4])
        assert (features.seq, features.first, len(features.rows)) == (3, HAVE, 4)


async def test_drafts_behind_a_miss_are_stale_one_by_one_until_one_fits(verifier, truth):
    async with talking(verifier) as talk:
        await begun(talk, verifier)
        await talk.send(ahead(2, truth[:1], DraftTree.chain([60, 59])))  # nothing of it stands
        wrong = [truth[0], 60, 59, 58]
        await talk.send(ahead(3, wrong[:4], DraftTree.chain([3])))
        await talk.send(ahead(4, [*wrong, 3, 4]))
        await talk.send(ahead(5, truth[:2], DraftTree.chain(truth[2:4])))
        await talk.send(ahead(6, truth[:2]))  # out of order: that place has been passed
        await talk.send(ahead(7, truth[:5]))
        verdicts = [await talk.receive() for _ in range(7)]
        assert [verdict.stale for verdict in verdicts] == [False, False, True, True, False, True, False]
        assert [verdict.seq for verdict in verdicts] == list(range(1, 8))
        assert [verdicts[i].bonus for i in (0, 1, 4, 6)] == [truth[0], truth[1], truth[4], truth[5]]


def test_what_is_held_awaits_its_last_bonus_only():
    sequence = Sequence(target().kv, None)
    assert not sequence.expects(0, 7, prefix_hash([7]))
    sequence.slot.length = 2
    sequence.tokens, sequence.bonus = [3, 4], 7
    assert sequence.expects(2, 7, prefix_hash([3, 4, 7]))
    sequence.truncate(2)
    assert sequence.expects(2, 7, prefix_hash([3, 4, 7]))
    sequence.truncate(1)
    assert sequence.bonus is None


def test_a_long_text_is_hashed_once_however_many_drafts_assume_it(monkeypatch):
    hashed = []
    monkeypatch.setattr(packing, "pack_tokens", lambda tokens: hashed.append(len(tokens)) or pack_tokens(tokens))
    text = random_tokens(np.random.default_rng(2), 5000)
    sequence = Sequence(target().kv, None)
    sequence.tokens, sequence.bonus = text[:1000], 7
    for length in (*range(1000, 5000, 40), 3000, *range(3000, 5000, 40)):
        sequence.truncate(length)
        sequence.tokens += text[len(sequence.tokens) : length]
        sequence.bonus = 7
        assumes = blake2b(pack_tokens([*text[:length], 7]), digest_size=8).digest()
        assert sequence.expects(length, 7, assumes)
        assert not sequence.expects(length, 7, bytes(8))
    assert sum(hashed) < 5000 + 5000 + 1000  # once, once more from where it was cut, and every bonus


async def test_nothing_follows_an_end_of_text(truth):
    model = build("llama")
    stop = max(i for i in range(12) if truth[i] not in truth[:i])
    model.generation_config.eos_token_id = [truth[stop]]
    verifier = Verifier(Target.of(model))
    async with started(verifier), talking(verifier) as talk:
        await begun(talk, verifier)
        await talk.send(ahead(2, truth[:1], DraftTree.chain(truth[1:stop])))
        await talk.send(ahead(3, truth[: stop + 1]))  # the bonus, but it ends the text
        assert [(await talk.receive()).finish for _ in range(2)] == [Finish.NOT_YET, Finish.EOS]
        assert await talk.receive() == stale(3)


@pytest.mark.parametrize("changes", [{"assumes": b"1234567"}, {"context": (3,)}])
async def test_a_hash_that_is_none_and_one_with_context_are_refused(verifier, truth, changes):
    async with talking(verifier) as talk:
        await talk.open(verifier.describe())
        await talk.send(ahead(1, truth[:1], **changes))
        assert (await talk.refusal()).reason is Reason.MALFORMED_FRAME


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=8)], ids=["greedy", "sampled"])
async def test_two_in_flight_write_what_the_plain_loop_writes(verifier, sampling):
    """A guesser that is right now and then; whatever it assumes wrongly is answered stale and made good."""
    rng = np.random.default_rng(3)
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), sampling=sampling)
        truth = [verdict.bonus for verdict in await talk.decode(0, PROMPT[:-1], PROMPT[-1], 60)]
        await talk.draft(0, PROMPT[:-1], PROMPT[-1])
        answer = [(await talk.receive()).bonus]
        missed = 0
        while len(answer) < 50:
            tree = tree_around(rng, truth[len(answer) :], 3, 3)
            guess = truth[len(answer) : len(answer) + 4] if rng.random() < 0.6 else random_tokens(rng, 3)
            second = tree_around(rng, truth[len(answer) + 4 :], 3, 2)
            talk.seq += 2
            await talk.send(Draft(talk.seq - 1, HAVE + len(answer) - 1, (), answer[-1], tree))
            await talk.send(ahead(talk.seq, [*answer, *guess], second))
            first, next_one = await talk.receive(), await talk.receive()
            answer += [*tree.path_tokens(first.path), first.bonus]
            if next_one.stale:
                missed += 1
            else:
                answer += [*second.path_tokens(next_one.path), next_one.bonus]
        assert answer == truth[: len(answer)]
        assert 0 < missed < 10
