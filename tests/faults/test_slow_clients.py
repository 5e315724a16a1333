"""A slow client among fast ones: it is served at its own pace, and nobody waits for it."""

import pytest
from stage import NEW, PROMPT, answer, client, opened, plain, server

from outrider_proto.frames import Decode, Verdict


@pytest.fixture
async def running():
    async with server() as it:
        yield it


async def test_one_that_takes_a_frame_between_others_answers(running):
    """Its decode is done long before it has read it; between two of its frames others write whole answers."""
    async with client(running.address) as fast:
        tap = running.verifier.describe().taps[0].fingerprint
        async with opened(running, tap=tap) as (slow, _):
            slow.seq += 1
            await slow.send(Decode(1, 0, PROMPT[:-1], PROMPT[-1], NEW, features_from=0))
            bonuses = []
            while len(bonuses) < NEW:
                assert await answer(fast, max_new_tokens=4) == plain(PROMPT, 4)
                if isinstance(frame := await slow.receive(), Verdict):
                    bonuses.append(frame.bonus)
        assert tuple(bonuses) == plain()
