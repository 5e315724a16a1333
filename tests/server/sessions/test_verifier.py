"""Sessions in process, beyond what their machine walks through: sampling, refusals, faults, takeovers, ends; drafts
sent ahead of the verdict they build on; and a Decode's features, which come as its tokens are made."""

import asyncio
import itertools
import threading
from hashlib import blake2b

import numpy as np
import pytest
from talk import NO_TREE, PROMPT, TAP, WAIT_S, KeysTap, conversing, refused, serving, talking
from tiny_targets import build, random_tokens, target, tree_around

from outrider_proto import packing
from outrider_proto.errors import Reason
from outrider_proto.frames import (
    Cancel,
    Close,
    Decode,
    Draft,
    Features,
    Finish,
    Open,
    Ping,
    Sampling,
    TokenRules,
    Verdict,
)
from outrider_proto.packing import pack_tokens, prefix_hash
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.scheduling.engine_loop import EngineLoop
from outrider_server.sessions.stream_reader import StreamReader


async def finish(talk, have: int, answer: list[int], truth: list[int], seed: int = 0) -> list[int]:
    """Draft on to the end of `truth`; `have` tokens are held, the last of `answer` is the root."""
    rng = np.random.default_rng(seed)
    while len(answer) < len(truth):
        tree = tree_around(rng, truth[len(answer) :], 4, 6)
        verdict = await talk.verdict(have, (), answer[-1], tree)
        answer = [*answer, *tree.path_tokens(verdict.path), verdict.bonus]
        have += 1 + len(verdict.path)
    return answer[: len(truth)]


async def test_a_request_may_change_the_sampling(truth):
    sampled = Sampling(0.9, seed=8)
    async with serving() as verifier, conversing(verifier, sampling=sampled) as opened_so, talking(verifier) as talk:
        expected = [v.bonus for v in await opened_so.decode(0, PROMPT[:-1], PROMPT[-1], 20)]
        opened = await talk.open(verifier.describe())
        assert opened.request_sampling
        assert [v.bonus for v in await talk.decode(0, PROMPT[:-1], PROMPT[-1], 9)] == truth[:9]
        first = await talk.verdict(0, PROMPT[:-1], PROMPT[-1], sampling=sampled)
        # Later requests keep it.
        assert await finish(talk, len(PROMPT), [first.bonus], expected) == expected
        verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 9, sampling=Sampling())
        assert [v.bonus for v in verdicts] == truth[:9]


async def test_what_a_taken_over_stream_asked_does_not_run_once_its_rules_are_compiled(truth, monkeypatch):
    compiling, go_on, submitted = asyncio.Event(), asyncio.Event(), []

    async def sampler_of(reader: StreamReader, sampling: Sampling) -> Sampler:
        if sampling.rules:
            compiling.set()
            await go_on.wait()
        return await plain_sampler(reader, sampling)

    def submit(loop: EngineLoop, request: object) -> None:
        submitted.append(request)
        plain_submit(loop, request)

    plain_submit, plain_sampler = EngineLoop.submit, StreamReader._sampler
    monkeypatch.setattr(EngineLoop, "submit", submit)
    monkeypatch.setattr(StreamReader, "_sampler", sampler_of)
    async with serving() as verifier, talking(verifier) as old, talking(verifier) as new:
        session = (await old.open(verifier.describe())).session_id
        await old.prompt(PROMPT)
        rules = Sampling(rules=TokenRules(presence_penalty=1.0))
        await old.draft(len(PROMPT), (), truth[0], DraftTree.chain(truth[1:3]), sampling=rules)
        await asyncio.wait_for(compiling.wait(), WAIT_S)
        assert (await new.open(verifier.describe(), session_id=session, committed_len=len(PROMPT))).resumed
        submitted.clear()
        go_on.set()
        for _ in range(3):
            assert (await new.verdict(len(PROMPT), (), truth[0], DraftTree.chain(truth[1:3]))).bonus == truth[3]
        assert len(submitted) == 3
        assert (await old.refusal()).reason is Reason.TAKEN_OVER


OPENINGS = [
    ({"protocol_version": 2}, Reason.VERSION_MISMATCH),
    ({"target_fingerprint": "other"}, Reason.TARGET_MISMATCH),
    ({"tokenizer_fingerprint": "other"}, Reason.TOKENIZER_MISMATCH),
    ({"tap": "moa:other"}, Reason.UNKNOWN_TAP),
    ({"codec": "int3"}, Reason.MALFORMED_FRAME),
]


@pytest.mark.parametrize(("changes", "reason"), OPENINGS)
async def test_an_open_that_does_not_fit_is_refused(changes, reason):
    async with serving() as verifier, talking(verifier) as talk:
        with refused(reason):
            await talk.open(verifier.describe(), **changes)


@pytest.mark.parametrize("frame", [Draft(1, 0, (3,), 5, NO_TREE), Ping(1), Close()])
async def test_the_first_frame_must_be_open(frame):
    async with serving() as verifier, talking(verifier) as talk:
        await talk.send(frame)
        assert (await talk.refusal()).reason is Reason.MALFORMED_FRAME


async def test_a_stream_that_is_cancelled_twice_still_lets_go_of_its_session():
    """gRPC may cancel a call whose stream is just ending for another reason."""
    async with serving() as verifier:
        about, ended, may_end = verifier.describe(), asyncio.Event(), asyncio.Event()

        async def incoming():
            yield Open(about.protocol_version, about.target_fingerprint, about.tokenizer_fingerprint)
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
                await may_end.wait()

        async def call() -> None:
            async for _ in verifier.session(incoming()):
                opened.set()

        opened = asyncio.Event()
        calling = asyncio.create_task(call())
        await asyncio.wait_for(opened.wait(), 20)
        calling.cancel()
        await asyncio.wait_for(ended.wait(), 20)
        calling.cancel()
        await asyncio.wait([calling])
        assert verifier.stats().active == 0
        may_end.set()


async def test_a_session_that_has_failed_is_not_taken_over(truth):
    async with serving() as verifier, talking(verifier) as first, talking(verifier) as second:
        opened = await first.open(verifier.describe())
        await first.prompt(PROMPT)
        (stream,) = verifier._streams
        stream.faulty = True  # as when a request of it has failed, and its stream is about to end
        again = await second.open(verifier.describe(), session_id=opened.session_id, committed_len=len(PROMPT))
        assert not again.resumed
        assert again.session_id != opened.session_id
        assert (await second.prompt(PROMPT)).bonus == truth[0]


HAVE = len(PROMPT)


@pytest.fixture
async def verifier():
    async with serving(taps=[TAP, KeysTap()], chunk_tokens=100) as verifier:
        yield verifier


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
    async with serving(Target.of(model)) as verifier, talking(verifier) as talk:
        await begun(talk, verifier)
        await talk.send(ahead(2, truth[:1], DraftTree.chain(truth[1:stop])))
        await talk.send(ahead(3, truth[: stop + 1]))  # the bonus, but it ends the text
        assert [(await talk.receive()).finish for _ in range(2)] == [Finish.NOT_YET, Finish.EOS]
        assert await talk.receive() == stale(3)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=8)], ids=["greedy", "sampled"])
async def test_two_in_flight_write_what_the_plain_loop_writes(verifier, sampling):
    """A guesser that is right now and then; whatever it assumes wrongly is answered stale and made good."""
    rng = np.random.default_rng(3)
    async with conversing(verifier, sampling=sampling) as talk:
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


@pytest.fixture
def passes(monkeypatch):
    """Every pass waits until it is let go."""
    let_go = threading.Semaphore(0)
    launch = Engine.launch

    def waiting(engine, inputs):
        assert let_go.acquire(timeout=WAIT_S)
        return launch(engine, inputs)

    monkeypatch.setattr(Engine, "launch", waiting)
    return let_go


def is_features(frame: Verdict | Features) -> bool:
    return isinstance(frame, Features)


async def frames_of(talk, decode: Decode, until: int, passes=None) -> list[Verdict | Features]:
    """All frames of a Decode, up to the features that are its last, which end at position `until`. With `passes`, the
    next pass begins once the last one's features are here."""
    await talk.send(decode)
    frames = []
    while not (frames and is_features(frames[-1]) and frames[-1].last):
        if passes is not None and (not frames or is_features(frames[-1])):
            passes.release()
        frames.append(await talk.receive())
    assert frames[-1].first + len(frames[-1].rows) == until
    return frames


def rows_of(frames) -> np.ndarray:
    """All rows, once they are seen to follow each other."""
    features = [frame for frame in frames if isinstance(frame, Features)]
    for one, other in itertools.pairwise(features):
        assert other.first == one.first + len(one.rows)
    return np.concatenate([frame.rows for frame in features])


async def test_rows_come_along_as_they_are_made(verifier, passes):
    async with conversing(verifier, tap=TAP) as talk:
        decode = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 9, features_from=0)
        frames = await frames_of(talk, decode, HAVE + 8, passes)
        assert "".join("f" if is_features(frame) else "v" for frame in frames) == "vf" * 9
        assert [frame.last for frame in frames if isinstance(frame, Features)] == [False] * 8 + [True]
        verdicts = [frame for frame in frames if isinstance(frame, Verdict)]
        answer = [verdict.bonus for verdict in verdicts]
        rows = rows_of(frames)
    passes.release()
    async with conversing(verifier, tap=TAP) as fresh:
        await fresh.draft(0, [*PROMPT, *answer[:7]], answer[7])
        await fresh.receive()
        features = await fresh.receive()
        np.testing.assert_allclose(rows, features.rows, atol=2e-5)


async def test_a_tap_that_is_read_at_its_newest_only_sends_that(verifier):
    async with conversing(verifier, tap="keys") as talk:
        frames = await frames_of(talk, Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 4, features_from=0), HAVE + 3)
        features = [frame for frame in frames if isinstance(frame, Features)]
        assert [(frame.first, len(frame.rows)) for frame in features] == [(HAVE - 1 + i, 1) for i in range(4)]


async def test_a_cancelled_decode_ends_its_features_too(verifier):
    async with conversing(verifier, tap=TAP) as talk:
        await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 400, features_from=0))
        await talk.receive()
        await talk.send(Cancel(1))
        frames = [await talk.receive()]
        while not (isinstance(frames[-1], Features) and frames[-1].last):
            frames.append(await talk.receive())
        assert any(isinstance(frame, Verdict) and frame.finish is Finish.CANCELLED for frame in frames)
        assert len(frames) < 800
