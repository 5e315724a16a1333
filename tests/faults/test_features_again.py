"""Clients that ask for features again and again, and do not read them: they hold little, and cost others nothing."""

import itertools

import numpy as np
from stage import until
from talk import started, talking
from tiny_targets import build, random_tokens

from outrider_drafters.contracts.tap import StatelessTap
from outrider_proto.frames import Decode, Features, Finish, TapInfo, Verdict
from outrider_server.engine.target import Target
from outrider_server.sessions.stream_writer import max_row_bytes
from outrider_server.sessions.verifier import Verifier

LENGTH = 500
PROMPT = tuple(random_tokens(np.random.default_rng(0), LENGTH))


class WideTap(StatelessTap):
    """As wide as the last hidden state of a large model: 16 KiB a row."""

    needs_kv = False
    hidden_layers = (-1,)
    info = TapInfo("wide", "test", 4096)

    def rows(self, acts):
        return acts.hidden[-1].float().repeat(1, 128)


def serving():
    return started(Verifier(Target.of(build("llama", max_position_embeddings=2048)), [WideTap()]))


async def rows_until(talk, seq: int) -> dict[int, list[Features]]:
    """All features, by request, up to the last ones of request `seq`."""
    found: dict[int, list[Features]] = {}
    while not (seq in found and found[seq][-1].last):
        if isinstance(frame := await talk.receive(), Features):
            found.setdefault(frame.seq, []).append(frame)
    return found


def joined(frames: list[Features]) -> np.ndarray:
    for one, other in itertools.pairwise(frames):
        assert other.first == one.first + len(one.rows)
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    return np.concatenate([frame.rows for frame in frames])


async def ask_again(talk, times: int) -> None:
    """Drafts of one row, each of which asks for the rows of the whole text."""
    for _ in range(times):
        await talk.draft(LENGTH - 1, (), PROMPT[-1], features_from=0)


async def test_rows_are_sent_again_once_a_stream_and_few_wait():
    async with serving() as verifier:
        async with talking(verifier) as talk:
            session = (await talk.open(verifier.describe(), tap="wide")).session_id
            await talk.draft(0, PROMPT[:-1], PROMPT[-1])
            (first,) = (await rows_until(talk, 1)).values()
            assert joined(first).shape == (LENGTH, 4096)
            (stream,) = verifier._streams
            await ask_again(talk, 8)
            await until(lambda: stream._last_seq == talk.seq and not stream._requests, "all requests have run")
            assert stream.waiting_bytes < 1.3 * max_row_bytes(64)  # 64 MiB if each were sent the whole
            again = await rows_until(talk, talk.seq)
            # The root runs again each time, and its row is of the last request alone.
            assert np.allclose(joined(again.pop(2)), joined(first)[:-1], atol=1e-3)
            assert [(frame.first, len(frame.rows)) for (frame,) in again.values()] == [(LENGTH - 1, 1)]
        async with talking(verifier) as talk:
            await talk.open(verifier.describe(), tap="wide", session_id=session, committed_len=LENGTH)
            await ask_again(talk, 9)
            again = await rows_until(talk, talk.seq)
            assert LENGTH <= sum(len(frame.rows) for frames in again.values() for frame in frames) < LENGTH + 9


async def test_a_long_answers_rows_wait_in_the_sessions_memory():
    """Verdicts go on meanwhile, and then every row comes."""
    count = 400
    async with serving() as verifier, talking(verifier) as talk:
        await talk.open(verifier.describe(), tap="wide")
        await talk.send(Decode(1, 0, PROMPT[:-1], PROMPT[-1], count, features_from=0))
        (stream,) = verifier._streams
        await until(lambda: len(stream._frames) >= 255, "verdicts enough to rest")
        assert stream.waiting_bytes < 1.3 * max_row_bytes(64)
        frames = []
        while not (frames and isinstance(frames[-1], Features) and frames[-1].last):
            frames.append(await talk.receive())
        verdicts = [frame for frame in frames if isinstance(frame, Verdict)]
        assert (len(verdicts), verdicts[-1].finish) in ((count, Finish.LIMIT), (len(verdicts), Finish.EOS))
        rows = joined([frame for frame in frames if isinstance(frame, Features)])
        assert len(rows) == LENGTH + len(verdicts) - 1


async def test_a_stream_that_ends_sends_the_rows_first():
    async with serving() as verifier, talking(verifier) as talk:
        await talk.open(verifier.describe(), tap="wide")
        await talk.draft(0, PROMPT[:-1], PROMPT[-1])
        await talk.send(None)  # no more requests
        assert len(joined((await rows_until(talk, 1))[1])) == LENGTH
        assert await talk.receive() is None
