"""The thread the target runs in, where what it is to tell others goes wrong."""

import asyncio
import threading

import numpy as np
from talk import talking
from tiny_targets import random_tokens, target

from outrider_proto.frames import Decode, Finish, Sampling, Verdict
from outrider_server.choice import Chooser
from outrider_server.held import Held
from outrider_server.jobs import Done, Job
from outrider_server.model_thread import Inquiry
from outrider_server.plain import plain_greedy
from outrider_server.telemetry.observer import Observer
from outrider_server.verifier import Verifier

PROMPT = random_tokens(np.random.default_rng(1), 12)


class Ticks(Observer):
    def __init__(self) -> None:
        self.reports = []

    def ticked(self, report) -> None:
        self.reports.append(report)


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


async def test_a_job_whose_answers_are_not_read_rests_while_others_run():
    (*truth,) = plain_greedy(target(), PROMPT, 12)
    said, ended, reads, ticks = [], threading.Event(), threading.Event(), Ticks()
    verifier = Verifier(target(), observer=ticks)
    held = Held(verifier.memory, None)

    def post(answer) -> None:
        said.append(answer)
        if isinstance(answer, Done):
            ended.set()

    def is_behind() -> bool:
        return len(said) >= 3 and not reads.is_set()

    await verifier.start()
    try:
        frame = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 12)
        verifier._thread.submit(Job(held, frame, Chooser(Sampling()), post, 0.0, 0, is_behind))
        async with talking(verifier) as talk:
            await talk.open(verifier.describe())
            for _ in range(8):
                assert [verdict.bonus for verdict in await talk.decode(0, PROMPT[:-1], PROMPT[-1], 4)] == truth[:4]
        assert len(said) == 3
        assert not any(report.waiting for report in ticks.reports)  # it is no load
        assert held.standing == "idle"  # its room is anybody's
        held.lose()  # nothing runs
        reads.set()
        assert await asyncio.to_thread(ended.wait, 60)
        assert [answer.bonus for answer in said if isinstance(answer, Verdict)] == truth
    finally:
        await verifier.stop()


async def test_a_job_that_rests_ends_when_it_is_stopped():
    verifier, said, ended = Verifier(target()), [], threading.Event()

    def post(answer) -> None:
        said.append(answer)
        if isinstance(answer, Done):
            ended.set()

    frame = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 12)
    job = Job(Held(verifier.memory, None), frame, Chooser(Sampling()), post, 0.0, 0, lambda: True)
    await verifier.start()
    try:
        verifier._thread.submit(job)
        async with talking(verifier) as talk:
            await talk.open(verifier.describe())
            await talk.prompt(PROMPT)
        assert said == []
        job.cancelled = True
        assert await asyncio.to_thread(ended.wait, 60)
        assert [answer.finish for answer in said[:-1]] == [Finish.CANCELLED]
    finally:
        await verifier.stop()


async def test_a_decode_waits_for_a_client_that_does_not_read_and_then_goes_on():
    count = 400
    truth = plain_greedy(target(), PROMPT, count)
    verifier = Verifier(target())
    await verifier.start()
    try:
        async with talking(verifier) as talk, talking(verifier) as other:
            await talk.open(verifier.describe())
            (stream,) = [stream for stream in verifier._streams if stream.session is not None]
            await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], count))
            await other.open(verifier.describe())
            while not stream.is_unread:  # every answer is a pass of both
                await other.prompt(PROMPT)
            verdicts = [await talk.receive() for _ in range(len(truth))]
        assert [verdict.bonus for verdict in verdicts] == truth
    finally:
        await verifier.stop()
