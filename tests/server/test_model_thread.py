"""The thread the target runs in, where what it is to tell others goes wrong."""

import asyncio
import threading

import numpy as np
from talk import talking
from tiny_targets import random_tokens, target

from outrider_server.held import Held
from outrider_server.model_thread import Inquiry
from outrider_server.plain import plain_greedy
from outrider_server.verifier import Verifier

PROMPT = random_tokens(np.random.default_rng(1), 12)


async def test_an_inquiry_that_fails_stops_nobody():
    (truth,) = plain_greedy(target(), PROMPT, 1)  # on the same model, which must not serve then
    verifier = Verifier(target())
    await verifier.start()
    failing = threading.Event()

    def fail(_) -> None:
        failing.set()
        raise RuntimeError("nobody takes it")

    try:
        verifier._thread.submit(Inquiry(Held(verifier.memory, None), 0, fail))
        assert await asyncio.to_thread(failing.wait, 60)
        async with talking(verifier) as talk:
            await talk.open(verifier.describe())
            assert (await talk.prompt(PROMPT)).bonus == truth
        assert verifier.alive
    finally:
        await verifier.stop()
