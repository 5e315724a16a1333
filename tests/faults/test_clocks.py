"""The clock on the wall jumps: nothing in a session's life looks at it."""

import re
import time
from pathlib import Path

import pytest
from stage import PROMPT, answer, client, opened, plain, server

ROOT = Path(__file__).parents[2]
WALL = re.compile(r"\btime\.time(_ns)?\(\)|\bdatetime\.(now|utcnow|today)\(")
TELLS_THE_TIME = (
    "client/outrider_client/gateway/",  # a field of OpenAI's
    "server/outrider_server/checking/",  # what `check` says of certificates
    "server/outrider_server/security/",  # the last day of a key or certificate
    "server/outrider_server/telemetry/",  # when something was
)


def test_nothing_that_serves_or_waits_asks_for_the_time_of_day():
    rooms = [ROOT / room for room in ("proto", "drafters", "server", "client")]
    asking = {
        path.relative_to(ROOT).as_posix()
        for room in rooms
        for path in room.rglob("*.py")
        if WALL.search(path.read_text())
    }
    assert not [path for path in asking if not path.startswith(TELLS_THE_TIME)]


@pytest.mark.parametrize("jump_s", [-1e9, 1e9])
async def test_an_answer_and_a_session_outlive_a_jump(monkeypatch, jump_s):
    async with server() as running, client(running.address) as mine:
        assert await answer(mine) == plain()
        async with opened(running) as (talk, about):
            await talk.prompt(PROMPT)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        longer = (*PROMPT, *plain(), 9)
        assert await answer(mine, longer) == plain(longer)
        async with opened(running, session_id=about.session_id, committed_len=len(PROMPT)) as (_, again):
            assert again.resumed
