"""Texts of sessions that come and go while passes run, features that wait, and where what the loop tells others goes
wrong."""

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from talk import PROMPT, TAP, KeysTap, conversing, serving, talking
from tiny_targets import build, random_tokens, target

from outrider_drafters.contracts.tap import LAST, Activations
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import Decode, Draft, Features, Finish, Sampling, TapInfo, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine
from outrider_server.engine.reference_decode import plain_decode, plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.prefix import BLOCK
from outrider_server.scheduling import pass_runner
from outrider_server.scheduling.engine_loop import EngineLoop
from outrider_server.scheduling.feature_feed import FeatureFeed
from outrider_server.scheduling.reply_poster import Reply, ReplyRoute, RequestDone
from outrider_server.scheduling.request import Request, new_request
from outrider_server.scheduling.request_queues import PrefixQuery
from outrider_server.scheduling.tree_budget import NO_LIMIT

COMMON = random_tokens(np.random.default_rng(2), 2 * BLOCK)
BOTH = pytest.mark.parametrize("plan_ahead", ["off", "on"])


class WatchedLoop(EngineLoop):
    """A loop whose steps the test runs. `during` is called in a pass behind its launch, `before_read` at its end.

    A GPU runs memory operations behind the pass that was launched before them. So does a CPU, which is through with a
    pass when launch() returns: whatever is done between launch() and finish() meets the same rows.
    """

    def __init__(self, plan_ahead: str = "on", on: Target | None = None, **limits) -> None:
        super().__init__(Engine(on or target()), LimitsConfig(plan_ahead=plan_ahead, room_wait_s=60, **limits))
        self.during: Callable[[], None] = lambda: None
        self.before_read: Callable[[], None] = lambda: None
        engine = self._passes._engine
        launch, finish = engine.launch, engine.finish

        def launched(inputs):
            one = launch(inputs)
            self.during()
            return one

        def finished(one):
            self.before_read()
            return finish(one)

        engine.launch, engine.finish = launched, finished

    def step(self, *items) -> None:
        for item in items:
            self.submit(item)
        self._gather()
        self._step()

    def run(self, requests: list[Request], *items) -> None:
        """Run requests to their end; those that are not among `items` have been submitted."""
        self.step(*items)
        while not all(request.ended for request in requests):
            self.step()


def session(memory: KVMemory | None = None) -> Sequence:
    return Sequence(memory or KVMemory(target().kv), None)


def decode(
    sequence: Sequence, said: list[Reply], count: int = 4, prompt: list[int] = PROMPT, sampling: Sampling | None = None
) -> Request:
    return request(sequence, frame(count, prompt), said, sampling)


def tokens_of(said: list[Reply]) -> list[int]:
    return [token for reply in said if isinstance(reply, Verdict) for token in (*reply.tokens, reply.bonus)]


@BOTH
def test_the_host_prepares_the_next_pass_before_it_reads(plan_ahead):
    """Of what arrives while a pass runs, all that needs no result of it and nobody's rows."""
    loop, said, seen = WatchedLoop(plan_ahead), {name: [] for name in "abcdq"}, {}
    memory = KVMemory(target().kv)
    newcomer = decode(session(memory), said["b"])
    doomed = decode(session(memory), said["c"])
    doomed.cancelled = True
    features = Sequence(memory, TAP)
    draft = Draft(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], DraftTree())
    loop.step(new_request(features, draft, Sampler(Sampling()), ReplyRoute([].append), 0.0))
    feed = FeatureFeed(features)
    frame = Features(7, 0, np.empty((0, TAP.info.width), np.float32), last=True)
    feed._is_full = True  # as if its client had not read
    feed.promise(said["d"].append, frame, 0, 5)

    def arrive() -> None:
        loop.during = lambda: None
        for item in (newcomer, doomed, PrefixQuery(features, 3, said["q"].append), feed):
            loop.submit(item)

    def look() -> None:
        loop.before_read = lambda: None
        seen["begun"] = newcomer.sequence.tokens == PROMPT[:-1] and newcomer.sequence.slot.holds_any
        seen.update({name: len(said[name]) for name in "cdq"})

    loop.during, loop.before_read = arrive, look
    runs = decode(session(memory), said["a"])
    loop.step(runs)
    on = plan_ahead == "on"
    assert seen == {"begun": on, "c": 2 * on, "d": on, "q": on}
    loop.run([runs, newcomer, doomed])
    truth = plain_greedy(target(), PROMPT, 4)
    assert tokens_of(said["a"]) == tokens_of(said["b"]) == truth
    assert [reply.finish for reply in said["c"][:-1]] == [Finish.CANCELLED]
    assert (said["d"][0].rows == features.feature_rows(0, 5)).all()
    assert said["q"][0].length == 3


def check_turns(prompt: list[int], again: list[int], sampling: Sampling, tapped: bool, said: list[Reply]) -> None:
    """Both turns' tokens are those of the plain loop, and each has the features of all its rows."""
    assert not any(isinstance(reply, Refusal) for reply in said)
    assert sum(isinstance(reply, RequestDone) for reply in said) == 2
    *decoded, judged = [reply for reply in said if isinstance(reply, Verdict)]
    first, second = plain_decode(target(), prompt, 12, sampling), plain_decode(target(), again, 4, sampling)
    assert tokens_of(decoded) == first
    length, drafted = len(judged.path), [*second[:2], 5]
    assert length >= min(2, len(second))
    assert [*drafted[:length], *([] if judged.bonus is None else [judged.bonus])] == second[: length + 1]
    rows = {(each.seq, each.first + n) for each in said if isinstance(each, Features) for n in range(len(each.rows))}
    lengths = ((1, len(prompt) + len(first) - 1), (2, len(again) + length)) if tapped else ()
    assert rows == {(seq, row) for seq, num_rows in lengths for row in range(num_rows)}


@pytest.mark.parametrize("swap", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_every_text_is_that_of_the_plain_loop(layout, swap):
    """Two turns each, greedy and sampled, with features and without, which come in while passes run.

    With memory for half of them, they share prefixes and lose rows to each other.
    """
    num_bytes = (420 if layout == "contiguous" else 320) * (target().kv.bytes_per_token + 4 * TAP.info.width)
    evictions = hits = 0
    for seed in range(4):
        memory = KVMemory(target().kv, num_bytes, "all", layout=layout, swap_bytes=num_bytes * swap, small_bytes=0)
        rng, loop, turns, texts, said = random.Random(seed), WatchedLoop(batch_tokens=48, chunk_tokens=32), [], [], []
        for number in range(6):
            own = random_tokens(np.random.default_rng(100 * seed + number), rng.randrange(5, 40))
            prompt = [*COMMON, *own] if number % 3 else own
            sampling = Sampling(0.9, seed=number) if number % 2 else Sampling()
            said.append(replies := [])
            sequence = Sequence(memory, TAP if number % 4 < 2 else None)
            features = {"features_from": 0} if sequence.tap else {}
            # Back to somewhere in the text, which its client says anew.
            again = [*prompt[: rng.randrange(2, len(prompt))], 7, 9]
            base = min(len(again) - 3, len(prompt) - 1)
            drafted = DraftTree.chain([*plain_decode(target(), again, 2, sampling), 5])
            then = Draft(2, base, tuple(again[base:-1]), again[-1], drafted, **features)
            texts.append((prompt, again, sampling, sequence.tap is not None))
            turns.append([request(sequence, each, replies, sampling) for each in (frame(12, prompt, **features), then)])
        coming = [each for turn in zip(*turns, strict=True) for each in turn]

        def arrive(coming=coming, loop=loop, rng=rng) -> None:
            for _ in range(min(rng.randrange(3), len(coming))):
                loop.submit(coming.pop(0))

        loop.during = arrive
        while coming or loop._queues or not loop._inbox.empty():
            loop.step(*[coming.pop(0)] if not loop._queues and loop._inbox.empty() else [])
        for turn, replies in zip(texts, said, strict=True):
            check_turns(*turn, replies)
        evictions += memory.evictions
        hits += memory.prefix_hits_tokens
    assert evictions
    assert hits


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_a_session_in_the_pass_loses_no_rows_to_one_that_begins_meanwhile(layout):
    """Though its client has left, and nothing else would have room."""
    rows = 300 if layout == "contiguous" else 230
    memory = KVMemory(target().kv, rows * target().kv.bytes_per_token, "none", layout=layout)
    loop, gone, said = WatchedLoop(), [], []
    first = decode(session(memory), gone, count=2)
    other = decode(session(memory), said, prompt=random_tokens(np.random.default_rng(3), 200))

    def leave() -> None:
        loop.during = lambda: None
        first.abandoned = first.sequence.parked = True
        loop.submit(other)

    seen = []
    loop.during = leave
    loop.before_read = lambda: seen.append((memory.evictions, first.sequence.slot.holds_any))
    loop.step(first)
    assert seen == [(0, True)]
    assert first.sequence.slot.length == len(PROMPT)  # committed
    loop.run([other])
    assert memory.evictions == 1
    assert tokens_of(said) == plain_greedy(target(), other.sequence.tokens[:200], 4)


def test_memory_that_ran_out_is_freed_after_the_pass():
    memory = KVMemory(target().kv)
    loop, said, idle = WatchedLoop(), [], session(memory)
    loop.step(decode(idle, [], count=1))
    held = []

    def run_out() -> None:
        loop.during = lambda: None
        memory.must_free_all = True
        loop.submit(decode(session(memory), []))

    loop.during = run_out
    loop.before_read = lambda: held.append(idle.slot.holds_any)
    one = decode(session(memory), said, count=3)
    loop.run([one], one)
    assert held[0]
    assert not idle.slot.holds_any
    assert tokens_of(said) == plain_greedy(target(), PROMPT, 3)


@pytest.mark.parametrize("place", ["launch", "finish"])
@BOTH
def test_of_a_pass_that_fails_only_the_session_at_fault_ends(plan_ahead, place, monkeypatch):
    loop, said = WatchedLoop(plan_ahead), {name: [] for name in ("good", "bad", "late")}
    bad, good, late = (decode(session(), said[name]) for name in ("bad", "good", "late"))
    once = getattr(loop._passes._engine, place)

    def failing(given):
        inputs = given if place == "launch" else given.inputs
        if any(one.sequence is bad.sequence for one in inputs):
            raise RuntimeError("broken")
        return once(given)

    monkeypatch.setattr(loop._passes._engine, place, failing)
    arrive = [late]
    loop.during = lambda: loop.submit(arrive.pop()) if arrive else None
    loop.run([bad, good, late], bad, good)
    assert [getattr(reply, "reason", None) for reply in said["bad"]] == [Reason.INTERNAL, None]
    truth = plain_greedy(target(), PROMPT, 4)
    for name in ("good", "late"):
        assert tokens_of(said[name]) == truth
        assert sum(isinstance(reply, RequestDone) for reply in said[name]) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_plans_ahead_by_itself():
    on_gpu = Target.of(build("llama").to("cuda"))
    loop, steps, said = WatchedLoop("auto", on_gpu), [], ([], [])
    loop._on_step = steps.append
    memory = KVMemory(on_gpu.kv)
    samplings = (Sampling(), Sampling(0.9, top_p=0.9, seed=4))
    first, second = (
        decode(session(memory), own, sampling=one, count=20) for own, one in zip(said, samplings, strict=True)
    )
    come = [second]
    loop.during = lambda: loop.submit(come.pop()) if come else None
    loop.run([first, second], first)
    assert tokens_of(said[0]) == plain_greedy(target(), PROMPT, 20)
    alone: list[Reply] = []
    third = decode(session(KVMemory(target().kv)), alone, sampling=samplings[1], count=20)
    WatchedLoop("off").run([third], third)
    assert tokens_of(said[1]) == tokens_of(alone)
    assert all(step.forward_s > 0 for step in steps)


class RunningMeanTap:
    """A tap with a state: the mean of the hidden states so far."""

    needs_kv = False
    hidden_layers = (LAST,)
    info = TapInfo("running-mean", "test", 1)

    def __init__(self) -> None:
        self.means: list[float] = []

    def new_state(self) -> "RunningMeanTap":
        return RunningMeanTap()

    def rows(self, acts: Activations):
        rows = acts.hidden[LAST].mean(dim=1, keepdim=True).clone()
        for row in rows:
            row += len(self.means)  # wrong where rows are left out or come twice
            self.means.append(float(row))
        return rows

    def truncate(self, length: int) -> None:
        del self.means[length:]


def request(
    sequence: Sequence, frame: Decode | Draft, said: list[Reply], sampling: Sampling | None = None, **more
) -> Request:
    return new_request(sequence, frame, Sampler(sampling or Sampling()), ReplyRoute(said.append, **more), 0.0)


def run(thread: WatchedLoop, one: Request) -> None:
    """Run a request to its end, which must not be a refusal: a session that fails begins anew, and ends up right."""
    post, refusals = one.post, []

    def watched(reply: Reply) -> None:
        refusals.extend([reply] if isinstance(reply, Refusal) else [])
        post(reply)

    one.post = watched
    thread.run([one], one)
    assert not refusals


def frame(count: int, prompt: list[int] = PROMPT, base_len: int = 0, **more) -> Decode:
    return Decode(1, base_len, tuple(prompt[base_len:-1]), prompt[-1], count, **more)


def rows_of(said: list[Reply]) -> np.ndarray:
    return np.concatenate([reply.rows for reply in said if isinstance(reply, Features)])


@pytest.mark.parametrize("tap", [TAP, KeysTap(), RunningMeanTap()], ids=lambda tap: tap.info.family)
def test_features_that_nobody_read_are_the_same_when_they_are_asked_for(tap, monkeypatch):
    count = pass_runner._DEFERRED_ROWS + 20
    answer = plain_greedy(target(), PROMPT, count)
    replies = {}
    for waits in (True, False):
        monkeypatch.setattr(pass_runner, "_DEFERRED_ROWS", pass_runner._DEFERRED_ROWS if waits else 0)
        thread, said = WatchedLoop(), []
        sequence = Sequence(KVMemory(target().kv), tap)
        run(thread, request(sequence, frame(count), []))
        assert (sequence.num_untapped > 1) == waits
        text = [*PROMPT, *answer]
        run(thread, request(sequence, Draft(2, len(text) - 1, (), text[-1], DraftTree(), features_from=0), said))
        assert not sequence.num_untapped
        replies[waits] = said
    assert [type(reply) for reply in replies[True]] == [Verdict, Features, RequestDone]
    assert replies[True][0].bonus == replies[False][0].bonus
    np.testing.assert_allclose(rows_of(replies[True]), rows_of(replies[False]), rtol=1e-5, atol=1e-5)


def test_a_prefix_that_another_session_holds_takes_the_place_of_rows_without_features(monkeypatch):
    begun = [*PROMPT, *plain_greedy(target(), PROMPT, 4)]
    text = [*begun, *COMMON]
    rows = {}
    for waits in (True, False):
        monkeypatch.setattr(pass_runner, "_DEFERRED_ROWS", pass_runner._DEFERRED_ROWS if waits else 0)
        thread, said, memory = WatchedLoop(), [], KVMemory(target().kv)
        first, second = (Sequence(memory, TAP, payer="one") for _ in range(2))
        run(thread, request(second, frame(5), []))
        assert second.tokens == begun
        run(thread, request(first, frame(2, text, features_from=0), []))
        # It holds rows without features, and the other session more of the text.
        run(thread, request(second, frame(2, text, len(begun)), []))
        assert memory.prefix_hits_tokens
        run(thread, request(second, Draft(2, len(text), (), second.tokens[-1], DraftTree(), features_from=0), said))
        rows[waits] = rows_of(said)
        assert len(rows[waits]) > len(text)
    np.testing.assert_allclose(rows[True], rows[False], rtol=1e-5, atol=1e-5)


def test_a_verdict_that_waited_comes_before_the_refusal_of_the_next_pass(monkeypatch):
    thread, said = WatchedLoop(), []
    one = request(session(), frame(20), said)
    thread.step(one)
    thread.step()
    monkeypatch.setattr(thread._passes._engine, "launch", lambda inputs: 1 / 0)
    thread.step()
    assert [type(reply) for reply in said] == [Verdict, Verdict, Refusal, RequestDone]


async def test_a_decode_waits_for_a_client_that_does_not_read_and_then_goes_on():
    truth = plain_greedy(target(), PROMPT, 400)
    async with serving() as verifier, conversing(verifier) as talk, talking(verifier) as other:
        (stream,) = [stream for stream in verifier._streams if stream.session is not None]
        await talk.send(frame(400))
        await other.open(verifier.describe())
        while not stream.is_unread:  # every answer is a pass of both
            await other.prompt(PROMPT)
        verdicts = [await talk.receive() for _ in truth]
    assert [verdict.bonus for verdict in verdicts] == truth


def test_a_request_that_is_abandoned_while_another_takes_its_room_does_not_run():
    memory = KVMemory(target().kv, 200 * target().kv.bytes_per_token, "none")  # room for one
    said, others = [], []
    first = decode(Sequence(memory, None), said)

    def hang_up() -> bool:
        first.abandoned = True
        return False

    bystander = request(Sequence(memory, None), frame(12), others, is_behind=hang_up)
    WatchedLoop().step(first, bystander)
    assert said == []
    assert not memory.must_free_all  # the machine lacks nothing
    assert [type(answer) for answer in others] == [Verdict]


def test_a_decode_that_lost_its_rows_while_it_rested_ends_its_features_when_it_is_cancelled():
    said, thread, update_paused = [], WatchedLoop(), threading.Event()
    sequence = Sequence(KVMemory(target().kv), KeysTap())
    one = request(sequence, frame(12, features_from=0), said, is_behind=update_paused.is_set)
    thread.step(one)
    sent = [answer for answer in said if isinstance(answer, Features)][-1]
    update_paused.set()
    thread.step()
    one.sequence.evict()
    one.cancelled = True
    thread.step()
    *_, verdict, features, done = said
    assert (verdict.finish, done) == (Finish.CANCELLED, RequestDone())
    assert (features.first, features.last) == (sent.first, True)
    assert np.array_equal(features.rows, sent.rows)


@pytest.mark.parametrize(("advice", "verified"), [(NO_LIMIT, 30), (12, 24), (4, 16)])
def test_of_a_draft_far_larger_than_was_asked_for_the_first_nodes_are_verified(monkeypatch, advice, verified):
    truth = plain_greedy(target(), PROMPT, 40)
    loop, said = WatchedLoop(), []
    monkeypatch.setattr(loop._tree_budget, "_most", advice or loop._tree_budget._most)
    draft = Draft(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], DraftTree.chain(truth[:30]))
    loop.step(request(Sequence(target().kv, None), draft, said))
    verdict, done = said
    assert verdict.path == tuple(range(verified))
    assert verdict.bonus == truth[verified]
    assert isinstance(done, RequestDone)


async def test_a_parked_session_keeps_nothing_of_what_its_client_did_not_read():
    async with serving() as verifier:
        async with conversing(verifier) as talk, talking(verifier) as other:
            (stream,) = [stream for stream in verifier._streams if stream.session is not None]
            await talk.send(frame(40))
            await other.open(verifier.describe())
            while not stream.waiting_bytes:
                await other.prompt(PROMPT)
        assert stream.session.owner is None
        assert stream.waiting_bytes == 0
