"""A Decode's features come as its tokens are made."""

import itertools
import threading

import numpy as np
import pytest
from talk import TAP, WAIT_S, KeysTap, talking
from tiny_targets import random_tokens, target

from outrider_proto.frames import Cancel, Decode, Features, Finish, Verdict
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine
from outrider_server.sessions.verifier import Verifier

PROMPT = random_tokens(np.random.default_rng(1), 12)
HAVE = len(PROMPT)


@pytest.fixture
async def verifier():
    verifier = Verifier(target(), [TAP, KeysTap()], LimitsConfig(chunk_tokens=100))
    await verifier.start()
    yield verifier
    await verifier.stop()


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
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        decode = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 9, features_from=0)
        frames = await frames_of(talk, decode, HAVE + 8, passes)
        assert "".join("f" if is_features(frame) else "v" for frame in frames) == "vf" * 9
        assert [frame.last for frame in frames if isinstance(frame, Features)] == [False] * 8 + [True]
        verdicts = [frame for frame in frames if isinstance(frame, Verdict)]
        answer = [verdict.bonus for verdict in verdicts]
        rows = rows_of(frames)
    passes.release()
    async with talking(verifier) as fresh:
        await fresh.open(verifier.describe(), tap=TAP.info.fingerprint)
        await fresh.draft(0, [*PROMPT, *answer[:7]], answer[7])
        await fresh.receive()
        features = await fresh.receive()
        np.testing.assert_allclose(rows, features.rows, atol=2e-5)


async def test_only_the_rows_that_are_lacking_come(verifier):
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        first = await talk.prompt(PROMPT)
        await talk.receive()
        frames = await frames_of(talk, Decode(2, HAVE, (), first.bonus, 5, features_from=HAVE - 2), HAVE + 5)
        assert next(frame for frame in frames if isinstance(frame, Features)).first == HAVE - 2
        assert len(rows_of(frames)) == 7


async def test_a_long_prompts_rows_hold_up_its_first_token_no_more_than_others(verifier):
    prompt = random_tokens(np.random.default_rng(2), 350)
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        frames = await frames_of(talk, Decode(1, 0, tuple(prompt[:-1]), prompt[-1], 3, features_from=0), 352)
        assert isinstance(frames[0], Verdict)
        assert next(len(frame.rows) for frame in frames if isinstance(frame, Features)) == 350
        assert len(rows_of(frames)) == 352


async def test_a_tap_that_is_read_at_its_newest_only_sends_that(verifier):
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), tap="keys")
        frames = await frames_of(talk, Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 4, features_from=0), HAVE + 3)
        features = [frame for frame in frames if isinstance(frame, Features)]
        assert [(frame.first, len(frame.rows)) for frame in features] == [(HAVE - 1 + i, 1) for i in range(4)]


async def test_a_cancelled_decode_ends_its_features_too(verifier):
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 400, features_from=0))
        await talk.receive()
        await talk.send(Cancel(1))
        frames = [await talk.receive()]
        while not (isinstance(frames[-1], Features) and frames[-1].last):
            frames.append(await talk.receive())
        assert any(isinstance(frame, Verdict) and frame.finish is Finish.CANCELLED for frame in frames)
        assert len(frames) < 800


async def test_without_features_from_none_come(verifier):
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 5))
        frames = [await talk.receive() for _ in range(5)]
        assert all(isinstance(frame, Verdict) for frame in frames)
