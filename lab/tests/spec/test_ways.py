"""Ways of answering end after the step in hand when they are cancelled."""

import asyncio
import threading
from functools import partial

import pytest

from outrider_bench.core.reference_answers import GenerateModel
from outrider_lab.spec.ways import in_thread
from outrider_models.core.embedded import target_dir
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

PROMPT, LIMIT = [*range(5, 25)], 500


async def test_a_cancelled_thread_ends_at_its_next_check():
    begun, ended = threading.Event(), threading.Event()

    def run(check):
        try:
            while True:
                begun.set()
                check()
        finally:
            ended.set()

    task = asyncio.create_task(in_thread(run))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 60)


@pytest.mark.parametrize("way", ["plain loop", "generate", "generate, prompt lookup"])
def test_a_check_comes_after_every_pass(way):
    passes = 0

    def check():
        nonlocal passes
        passes += 1
        if passes == 3:
            raise asyncio.CancelledError

    if way == "plain loop":
        answer = partial(plain_greedy, Target.load(str(target_dir())), PROMPT, LIMIT, step=check)
    else:
        how = {"prompt_lookup_num_tokens": 10} if "lookup" in way else {}
        answer = partial(GenerateModel.load(target_dir()).answer, PROMPT, LIMIT, check, **how)
    with pytest.raises(asyncio.CancelledError):
        answer()
    assert passes == 3
