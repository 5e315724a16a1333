"""A slow client among fast ones: it is served at its own pace, and nobody waits for it."""

import asyncio
from dataclasses import replace

import pytest
from stage import NEW, PROMPT, answer, client, opened, plain, server

from outrider_netsim import Link, profile_named
from outrider_proto.frames import Decode, Verdict

LONG = tuple(3 + number % 200 for number in range(400))


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


@pytest.mark.slow
async def test_one_behind_a_link_of_256_kbit_s(running):
    """Others finish answers while its long prompt's features are under way."""
    lan = profile_named("lan")
    narrow = replace(lan, up=replace(lan.up, rate_bps=256e3), down=replace(lan.down, rate_bps=256e3))
    link = Link(narrow, running.address, engine="proxy")
    async with link, client(link.address, codec="float32") as slow, client(running.address) as fast:
        finished = 0
        writing = asyncio.create_task(answer(slow, LONG))
        while not writing.done():
            assert await answer(fast, max_new_tokens=4) == plain(PROMPT, 4)
            finished += not writing.done()
        assert await writing == plain(LONG)
    assert finished >= 1
