"""The thread the target runs in, where what it is to tell others goes wrong."""

import asyncio
import threading

import numpy as np
import pytest
from talk import KeysTap, started, talking
from tiny_targets import random_tokens, target

from outrider_proto.frames import Decode, Draft, Features, Finish, Sampling, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.memory import KVMemory
from outrider_server.scheduling.engine_loop import EngineLoop
from outrider_server.scheduling.request import Reply, ReplyRoute, Request, RequestDone, new_request
from outrider_server.scheduling.request_queues import PrefixQuery
from outrider_server.scheduling.tree_budget import NO_LIMIT
from outrider_server.sessions.verifier import Verifier
from outrider_server.telemetry.observer import ServerObserver

PROMPT = random_tokens(np.random.default_rng(1), 12)


class Steps(ServerObserver):
    def __init__(self) -> None:
        self.reports = []

    def stepped(self, report) -> None:
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
        verifier._engine_loop.submit(PrefixQuery(Sequence(verifier.memory, None), 0, fail))
        assert await asyncio.to_thread(failing.wait, 60)
        async with talking(verifier) as talk:
            await talk.open(verifier.describe())
            assert (await talk.prompt(PROMPT)).bonus == truth
        assert verifier.alive
    finally:
        await verifier.stop()


async def test_a_request_whose_answers_are_not_read_rests_while_others_run():
    (*truth,) = plain_greedy(target(), PROMPT, 12)
    said, ended, reads, steps = [], threading.Event(), threading.Event(), Steps()
    verifier = Verifier(target(), observer=steps)
    sequence = Sequence(verifier.memory, None)

    def post(answer) -> None:
        said.append(answer)
        if isinstance(answer, RequestDone):
            ended.set()

    def is_behind() -> bool:
        return len(said) >= 3 and not reads.is_set()

    async with started(verifier):
        frame = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 12)
        verifier._engine_loop.submit(
            new_request(sequence, frame, Sampler(Sampling()), ReplyRoute(post, is_behind), 0.0)
        )
        async with talking(verifier) as talk:
            await talk.open(verifier.describe())
            for _ in range(8):
                assert [verdict.bonus for verdict in await talk.decode(0, PROMPT[:-1], PROMPT[-1], 4)] == truth[:4]
        assert len(said) == 3
        assert not any(report.waiting for report in steps.reports)  # it is no load
        assert sequence.status == "idle"  # its room is anybody's
        sequence.evict()  # nothing runs
        reads.set()
        assert await asyncio.to_thread(ended.wait, 60)
        assert [answer.bonus for answer in said if isinstance(answer, Verdict)] == truth


async def test_a_request_that_rests_ends_when_it_is_stopped():
    verifier, said, ended = Verifier(target()), [], threading.Event()

    def post(answer) -> None:
        said.append(answer)
        if isinstance(answer, RequestDone):
            ended.set()

    frame = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 12)
    request = new_request(
        Sequence(verifier.memory, None), frame, Sampler(Sampling()), ReplyRoute(post, lambda: True), 0.0
    )
    async with started(verifier):
        verifier._engine_loop.submit(request)
        async with talking(verifier) as talk:
            await talk.open(verifier.describe())
            await talk.prompt(PROMPT)
        assert said == []
        request.cancelled = True
        assert await asyncio.to_thread(ended.wait, 60)
        assert [answer.finish for answer in said[:-1]] == [Finish.CANCELLED]


async def test_a_decode_waits_for_a_client_that_does_not_read_and_then_goes_on():
    count = 400
    truth = plain_greedy(target(), PROMPT, count)
    verifier = Verifier(target())
    async with started(verifier):
        async with talking(verifier) as talk, talking(verifier) as other:
            await talk.open(verifier.describe())
            (stream,) = [stream for stream in verifier._streams if stream.session is not None]
            await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], count))
            await other.open(verifier.describe())
            while not stream.is_unread:  # every answer is a pass of both
                await other.prompt(PROMPT)
            verdicts = [await talk.receive() for _ in range(len(truth))]
        assert [verdict.bonus for verdict in verdicts] == truth


def by_hand(limits: LimitsConfig | None = None) -> EngineLoop:
    """A loop that is never started: the test runs its steps, each to its end."""
    return EngineLoop(Engine(target()), limits or LimitsConfig(), overlap=False)


def step(thread: EngineLoop, *requests: Request) -> None:
    for request in requests:
        thread.submit(request)
    thread._gather()
    thread._step()


def decoding(
    sequence: Sequence, said: list[Reply], is_behind=lambda: False, features_from: int | None = None
) -> Request:
    frame = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 12, features_from=features_from)
    return new_request(sequence, frame, Sampler(Sampling()), ReplyRoute(said.append, is_behind), 0.0)


def test_a_request_that_is_abandoned_while_another_takes_its_room_does_not_run():
    memory = KVMemory(target().kv, 200 * target().kv.bytes_per_token, "none")  # room for one
    said, others = [], []
    first = decoding(Sequence(memory, None), said)

    def hang_up() -> bool:
        first.abandoned = True
        return False

    bystander = decoding(Sequence(memory, None), others, hang_up)
    step(by_hand(), first, bystander)
    assert said == []
    assert not memory.must_free_all  # the machine lacks nothing
    assert [type(answer) for answer in others] == [Verdict]


def test_a_decode_that_lost_its_rows_while_it_rested_ends_its_features_when_it_is_cancelled():
    said, thread, update_paused = [], by_hand(), threading.Event()
    request = decoding(Sequence(KVMemory(target().kv), KeysTap()), said, update_paused.is_set, features_from=0)
    step(thread, request)
    sent = [answer for answer in said if isinstance(answer, Features)][-1]
    update_paused.set()
    step(thread)
    request.sequence.evict()
    request.cancelled = True
    step(thread)
    *_, verdict, features, done = said
    assert (verdict.finish, done) == (Finish.CANCELLED, RequestDone())
    assert (features.first, features.last) == (sent.first, True)
    assert np.array_equal(features.rows, sent.rows)


@pytest.mark.parametrize(("advice", "verified"), [(NO_LIMIT, 30), (12, 24), (4, 16)])
def test_of_a_draft_far_larger_than_was_asked_for_the_first_nodes_are_verified(monkeypatch, advice, verified):
    truth = plain_greedy(target(), PROMPT, 40)
    loop, said = by_hand(), []
    monkeypatch.setattr(loop._tree_budget, "_most", advice or loop._tree_budget._most)
    draft = Draft(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], DraftTree.chain(truth[:30]))
    step(loop, new_request(Sequence(target().kv, None), draft, Sampler(Sampling()), ReplyRoute(said.append), 0.0))
    verdict, done = said
    assert verdict.path == tuple(range(verified))
    assert verdict.bonus == truth[verified]
    assert isinstance(done, RequestDone)


def test_to_rest_is_no_waiting_for_room():
    update_paused = threading.Event()
    request = decoding(Sequence(KVMemory(target().kv), None), [], update_paused.is_set)
    assert request.memory_wait_s(10.0) == 0
    assert request.memory_wait_s(12.0) == 2
    update_paused.set()
    assert request.update_paused(90.0)
    assert request.memory_wait_s(95.0) == 0


def test_a_thread_whose_requests_all_rest_is_idle():
    thread = by_hand()
    step(thread, decoding(Sequence(KVMemory(target().kv), None), [], lambda: True))
    before = thread._idle_s
    step(thread)
    assert thread._idle_s > before


async def test_a_parked_session_keeps_nothing_of_what_its_client_did_not_read():
    verifier = Verifier(target())
    async with started(verifier):
        async with talking(verifier) as talk, talking(verifier) as other:
            await talk.open(verifier.describe())
            (stream,) = [stream for stream in verifier._streams if stream.session is not None]
            await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 40))
            await other.open(verifier.describe())
            while not stream.waiting_bytes:
                await other.prompt(PROMPT)
        assert stream.session.owner is None
        assert stream.waiting_bytes == 0
