"""What the engine loop does of a pass while the next one runs, beside the plain order."""

import numpy as np
import pytest
from talk import TAP, KeysTap
from tiny_targets import random_tokens, target

from outrider_drafters.contracts.tap import LAST, Activations
from outrider_proto.errors import Refusal
from outrider_proto.frames import Decode, Draft, Features, Sampling, TapInfo, Verdict
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.prefix import BLOCK
from outrider_server.scheduling.engine_loop import EngineLoop
from outrider_server.scheduling.pass_runner import _DEFERRED_ROWS
from outrider_server.scheduling.request import Reply, ReplyRoute, Request, RequestDone, new_request

PROMPT = random_tokens(np.random.default_rng(1), 12)
LONG = random_tokens(np.random.default_rng(2), 2 * BLOCK)


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


def loop(overlap: bool) -> EngineLoop:
    """A loop that is never started: the test runs its steps."""
    return EngineLoop(Engine(target()), LimitsConfig(), overlap=overlap)


def request(sequence: Sequence, frame: Decode | Draft, said: list[Reply]) -> Request:
    return new_request(sequence, frame, Sampler(Sampling()), ReplyRoute(said.append), 0.0)


def run(thread: EngineLoop, one: Request) -> None:
    """Run a request to its end, which must not be a refusal: a session that fails begins anew, and ends up right."""
    post, refusals = one.post, []

    def watched(reply: Reply) -> None:
        refusals.extend([reply] if isinstance(reply, Refusal) else [])
        post(reply)

    one.post = watched
    thread.submit(one)
    while not one.ended:
        thread._gather()
        thread._step()
    assert not refusals


def decode(count: int, prompt: list[int] = PROMPT, base_len: int = 0, **more) -> Decode:
    return Decode(1, base_len, tuple(prompt[base_len:-1]), prompt[-1], count, **more)


def rows_of(said: list[Reply]) -> np.ndarray:
    return np.concatenate([reply.rows for reply in said if isinstance(reply, Features)])


@pytest.mark.parametrize("tap", [TAP, KeysTap(), RunningMeanTap()], ids=lambda tap: tap.info.family)
def test_features_that_nobody_read_are_the_same_when_they_are_asked_for(tap):
    count = _DEFERRED_ROWS + 20
    answer = plain_greedy(target(), PROMPT, count)
    replies = {}
    for overlap in (False, True):
        thread, said = loop(overlap), []
        sequence = Sequence(KVMemory(target().kv), tap)
        run(thread, request(sequence, decode(count), []))
        assert (sequence.num_untapped > 1) == overlap
        text = [*PROMPT, *answer]
        run(thread, request(sequence, Draft(2, len(text) - 1, (), text[-1], DraftTree(), features_from=0), said))
        assert not sequence.num_untapped
        replies[overlap] = said
    assert [type(reply) for reply in replies[True]] == [Verdict, Features, RequestDone]
    assert replies[True][0].bonus == replies[False][0].bonus
    np.testing.assert_allclose(rows_of(replies[True]), rows_of(replies[False]), rtol=1e-5, atol=1e-5)


def test_features_of_a_text_that_is_cut_before_they_are_made():
    rows = {}
    for overlap in (False, True):
        thread, said = loop(overlap), []
        sequence = Sequence(KVMemory(target().kv), RunningMeanTap())
        run(thread, request(sequence, decode(30), []))
        other = [*PROMPT, *plain_greedy(target(), PROMPT, 9)[:9], 5, 6]
        run(thread, request(sequence, decode(20, other, len(other) - 3), []))
        end = len(sequence.tokens)
        run(thread, request(sequence, Draft(2, end, (), sequence.bonus, DraftTree(), features_from=0), said))
        rows[overlap] = rows_of(said)
    np.testing.assert_allclose(rows[True], rows[False], rtol=1e-5, atol=1e-5)


def test_a_prefix_that_another_session_holds_takes_the_place_of_rows_without_features():
    begun = [*PROMPT, *plain_greedy(target(), PROMPT, 4)]
    text = [*begun, *LONG]
    rows = {}
    for overlap in (False, True):
        thread, said, memory = loop(overlap), [], KVMemory(target().kv)
        first, second = (Sequence(memory, TAP, payer="one") for _ in range(2))
        run(thread, request(second, decode(5), []))
        assert second.tokens == begun
        run(thread, request(first, decode(2, text, features_from=0), []))
        # It holds rows without features, and the other session more of the text.
        run(thread, request(second, decode(2, text, len(begun)), []))
        assert memory.prefix_hits_tokens
        run(thread, request(second, Draft(2, len(text), (), second.tokens[-1], DraftTree(), features_from=0), said))
        rows[overlap] = rows_of(said)
        assert len(rows[overlap]) > len(text)
    np.testing.assert_allclose(rows[True], rows[False], rtol=1e-5, atol=1e-5)


def test_verdicts_keep_their_order_and_come_before_the_end():
    thread, said = loop(overlap=True), []
    run(thread, request(Sequence(KVMemory(target().kv), None), decode(20), said))
    *verdicts, done = said
    assert [verdict.bonus for verdict in verdicts] == plain_greedy(target(), PROMPT, 20)
    assert done == RequestDone()


def test_a_verdict_that_waited_comes_before_the_refusal_of_the_next_pass(monkeypatch):
    thread, said = loop(overlap=True), []
    one = request(Sequence(KVMemory(target().kv), None), decode(20), said)
    thread.submit(one)
    for _ in range(2):
        thread._gather()
        thread._step()
    monkeypatch.setattr(thread._passes._engine, "launch", lambda inputs: 1 / 0)
    thread._gather()
    thread._step()
    assert [type(reply) for reply in said] == [Verdict, Verdict, Refusal, RequestDone]


class Waking:
    """An event loop that counts how often it is woken."""

    count = 0

    def call_soon_threadsafe(self, callback) -> None:
        self.count += 1
        callback()


@pytest.mark.parametrize("overlap", [False, True])
def test_the_event_loop_is_woken_before_the_next_pass_or_in_it(overlap):
    waking, said, paused = Waking(), [], False
    thread = loop(overlap)
    thread._replies.attach(waking)
    route = ReplyRoute(lambda reply: thread._replies.post(lambda: said.append(reply)), lambda: paused)
    thread.submit(new_request(Sequence(KVMemory(target().kv), None), decode(20), Sampler(Sampling()), route, 0.0))
    thread._gather()
    thread._step()
    assert len(said) == (not overlap)
    thread._step()
    assert len(said) >= 1
    paused = True  # no pass follows
    thread._step()
    thread.stop()
    assert [verdict.bonus for verdict in said] == plain_greedy(target(), PROMPT, 2)
    assert waking.count <= 2
