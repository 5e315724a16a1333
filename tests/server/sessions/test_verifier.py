"""Sessions in process, beyond what their machine walks through: sampling, refusals, faults, takeovers, ends."""

import asyncio
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest
from talk import NO_TREE, TAP, WAIT_S, started, talking
from tiny_targets import random_tokens, target, tree_around

from outrider_drafters.contracts.token_rules import AnswerRules
from outrider_proto.errors import Reason, Refusal
from outrider_proto.frames import (
    Close,
    Decode,
    Draft,
    Finish,
    Open,
    Ping,
    Sampling,
    TokenRules,
    Verdict,
)
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.scheduling.engine_loop import EngineLoop
from outrider_server.sessions.verifier import Verifier

PROMPT = random_tokens(np.random.default_rng(1), 12)


@asynccontextmanager
async def serving(**limits):
    verifier = Verifier(target(), [TAP], LimitsConfig(**limits))
    async with started(verifier):
        yield verifier


@pytest.fixture(scope="module")
def truth() -> list[int]:
    return plain_greedy(target(), PROMPT, 60)


async def finish(talk, have: int, answer: list[int], truth: list[int], seed: int = 0) -> list[int]:
    """Draft on to the end of `truth`; `have` tokens are held, the last of `answer` is the root."""
    rng = np.random.default_rng(seed)
    while len(answer) < len(truth):
        tree = tree_around(rng, truth[len(answer) :], 4, 6)
        verdict = await talk.verdict(have, (), answer[-1], tree)
        answer = [*answer, *tree.path_tokens(verdict.path), verdict.bonus]
        have += 1 + len(verdict.path)
    return answer[: len(truth)]


async def test_sampled_decode_and_drafts_say_the_same():
    async with serving() as verifier:
        texts = []
        for _ in range(2):
            async with talking(verifier) as talk:
                await talk.open(verifier.describe(), sampling=Sampling(0.9, seed=8))
                verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 20)
                texts.append([v.bonus for v in verdicts])
        async with talking(verifier) as talk:
            await talk.open(verifier.describe(), sampling=Sampling(0.9, seed=8))
            first = await talk.prompt(PROMPT)
            texts.append(await finish(talk, len(PROMPT), [first.bonus], texts[0]))
        assert texts[0] == texts[1] == texts[2]


async def test_a_request_may_change_the_sampling(truth):
    sampled = Sampling(0.9, seed=8)
    async with serving() as verifier, talking(verifier) as opened_so, talking(verifier) as talk:
        await opened_so.open(verifier.describe(), sampling=sampled)
        expected = [v.bonus for v in await opened_so.decode(0, PROMPT[:-1], PROMPT[-1], 20)]
        opened = await talk.open(verifier.describe())
        assert opened.request_sampling
        assert [v.bonus for v in await talk.decode(0, PROMPT[:-1], PROMPT[-1], 9)] == truth[:9]
        first = await talk.verdict(0, PROMPT[:-1], PROMPT[-1], sampling=sampled)
        # Later requests keep it.
        assert await finish(talk, len(PROMPT), [first.bonus], expected) == expected
        verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 9, sampling=Sampling())
        assert [v.bonus for v in verdicts] == truth[:9]


async def test_typical_decodes_argmaxes_and_drafts_as_the_rule_has_it(truth):
    """No draft: the target's greedy text, whatever the seed. A draft of typical tokens stands, right or not."""
    loose = Sampling(5.0, seed=8, acceptance="typical", epsilon=1e-9)
    async with serving() as verifier, talking(verifier) as talk:
        await talk.open(verifier.describe(), sampling=loose)
        assert [v.bonus for v in await talk.decode(0, PROMPT[:-1], PROMPT[-1], 9)] == truth[:9]
        wrong = DraftTree.chain([(token + 1) % 61 or 3 for token in truth[1:5]])
        verdict = await talk.verdict(len(PROMPT), (), truth[0], wrong)
        assert verdict.path == (0, 1, 2, 3)
        (bonus,) = await talk.decode(len(PROMPT), (truth[0], *wrong.tokens[:-1]), wrong.tokens[-1], 1)
        assert bonus.bonus == verdict.bonus


async def test_a_resume_fences_the_older_stream(truth):
    async with serving() as verifier, talking(verifier) as old, talking(verifier) as new:
        session = (await old.open(verifier.describe())).session_id
        await old.prompt(PROMPT)
        await old.send(Decode(9, len(PROMPT), (), truth[0], 400))
        await old.receive()
        opened = await new.open(verifier.describe(), session_id=session, committed_len=len(PROMPT))
        assert (opened.resumed, opened.kept_len) == (True, len(PROMPT))
        assert (await old.refusal()).reason is Reason.TAKEN_OVER
        await old.hang_up()
        assert await finish(new, len(PROMPT), truth[:1], truth) == truth


async def test_what_a_taken_over_stream_asked_does_not_run_once_its_rules_are_compiled(truth, monkeypatch):
    compiling, go_on, submitted = threading.Event(), threading.Event(), []

    def compile_slowly(*given) -> AnswerRules:
        compiling.set()
        go_on.wait(WAIT_S)
        return AnswerRules(*given)

    def submit(loop: EngineLoop, request: object) -> None:
        submitted.append(request)
        plain_submit(loop, request)

    plain_submit = EngineLoop.submit
    monkeypatch.setattr(EngineLoop, "submit", submit)
    monkeypatch.setattr("outrider_server.sessions.stream_reader.AnswerRules", compile_slowly)
    async with serving() as verifier, talking(verifier) as old, talking(verifier) as new:
        session = (await old.open(verifier.describe())).session_id
        await old.prompt(PROMPT)
        rules = Sampling(rules=TokenRules(presence_penalty=1.0))
        await old.draft(len(PROMPT), (), truth[0], DraftTree.chain(truth[1:3]), sampling=rules)
        await asyncio.to_thread(compiling.wait, WAIT_S)
        assert (await new.open(verifier.describe(), session_id=session, committed_len=len(PROMPT))).resumed
        submitted.clear()
        go_on.set()
        for _ in range(3):
            assert (await new.verdict(len(PROMPT), (), truth[0], DraftTree.chain(truth[1:3]))).bonus == truth[3]
        assert len(submitted) == 3
        assert (await old.refusal()).reason is Reason.TAKEN_OVER


OPENINGS = [
    ({"protocol_version": 2}, Reason.VERSION_MISMATCH),
    ({"target_fingerprint": "other"}, Reason.TARGET_MISMATCH),
    ({"tokenizer_fingerprint": "other"}, Reason.TOKENIZER_MISMATCH),
    ({"tap": "moa:other"}, Reason.UNKNOWN_TAP),
    ({"codec": "int3"}, Reason.MALFORMED_FRAME),
]
REQUESTS = [
    (Draft(1, 0, (), 61, NO_TREE), Reason.TOKEN_OUT_OF_VOCABULARY),
    (Draft(1, 0, (3, 70), 5, NO_TREE), Reason.TOKEN_OUT_OF_VOCABULARY),
    (Draft(1, 0, (3,), 5, DraftTree((61,), (-1,))), Reason.TOKEN_OUT_OF_VOCABULARY),
    (Draft(1, 0, (3,), 5, DraftTree.chain(range(21))), Reason.TREE_TOO_LARGE),
    (Draft(1, 1, (3,), 5, NO_TREE), Reason.BAD_SEQUENCE),
    (Draft(0, 0, (3,) * 600, 5, NO_TREE), Reason.CONTEXT_FULL),
    (Draft(1, 511, (), 5, NO_TREE), Reason.CONTEXT_FULL),
    (Draft(1, 0, (3,), 5, NO_TREE, features_from=-1), Reason.MALFORMED_FRAME),
    (Draft(1, 0, (3,), 5, NO_TREE, codec="int3"), Reason.MALFORMED_FRAME),
    (Decode(1, 0, (3,), 5, 0), Reason.MALFORMED_FRAME),
    (Decode(1, 0, (3,), 5, 3, codec="int3"), Reason.MALFORMED_FRAME),
    (Draft(-1, 0, (3,), 5, NO_TREE), Reason.BAD_SEQUENCE),
    (Open(1, "", "none"), Reason.MALFORMED_FRAME),
]


@pytest.mark.parametrize(("changes", "reason"), OPENINGS)
async def test_an_open_that_does_not_fit_is_refused(changes, reason):
    async with serving() as verifier, talking(verifier) as talk:
        with pytest.raises(Refusal) as refused:
            await talk.open(verifier.describe(), **changes)
        assert refused.value.reason is reason


@pytest.mark.parametrize(("frame", "reason"), REQUESTS)
async def test_a_bad_request_ends_its_stream_and_nobody_elses(frame, reason, truth):
    async with serving(max_nodes=20) as verifier, talking(verifier) as other:
        await other.open(verifier.describe())
        assert (await other.prompt(PROMPT)).bonus == truth[0]
        async with talking(verifier) as talk:
            await talk.open(verifier.describe())
            await talk.send(frame)
            assert (await talk.refusal()).reason is reason
        assert await finish(other, len(PROMPT), truth[:1], truth) == truth


@pytest.mark.parametrize("frame", [Draft(1, 0, (3,), 5, NO_TREE), Ping(1), Close()])
async def test_the_first_frame_must_be_open(frame):
    async with serving() as verifier, talking(verifier) as talk:
        await talk.send(frame)
        assert (await talk.refusal()).reason is Reason.MALFORMED_FRAME


async def test_a_sequence_number_must_grow(truth):
    async with serving() as verifier, talking(verifier) as talk:
        await talk.open(verifier.describe())
        await talk.prompt(PROMPT)
        talk.seq = 0
        await talk.draft(len(PROMPT), (), truth[0])
        assert (await talk.refusal()).reason is Reason.BAD_SEQUENCE


async def test_a_session_at_fault_is_forgotten_and_others_go_on(monkeypatch, truth, caplog):
    async with serving() as verifier, talking(verifier) as bad, talking(verifier) as good:
        session = (await bad.open(verifier.describe())).session_id
        await good.open(verifier.describe())
        engine = verifier._engine_loop._passes._engine
        launch = engine.launch

        def failing(inputs):
            if any(13 in work.chain for work in inputs):
                raise RuntimeError("broken")
            return launch(inputs)

        monkeypatch.setattr(engine, "launch", failing)
        prompt = [t for t in PROMPT if t != 13]
        await bad.draft(0, [13], 5)
        answered = asyncio.create_task(good.prompt(prompt))
        assert (await bad.refusal()).reason is Reason.INTERNAL
        await bad.hang_up()
        assert (await answered).finish is Finish.NOT_YET
        async with talking(verifier) as again:
            assert not (await again.open(verifier.describe(), session_id=session)).resumed
        assert "broken" in caplog.text


async def test_a_long_prompt_lets_others_through(monkeypatch):
    long = random_tokens(np.random.default_rng(2), 400)
    async with serving(chunk_tokens=20) as verifier, talking(verifier) as slow, talking(verifier) as quick:
        await slow.open(verifier.describe())
        await quick.open(verifier.describe())
        passes = []
        engine = verifier._engine_loop._passes._engine
        launch = engine.launch
        monkeypatch.setattr(
            engine,
            "launch",
            lambda inputs: passes.append([len(w.chain) for w in inputs]) or launch(inputs),
        )
        expected = plain_greedy(target(), long, 1)  # before the thread has work: both use the one model
        await slow.draft(0, long[:-1], long[-1])
        await quick.draft(0, PROMPT[:-1], PROMPT[-1])
        assert isinstance(await quick.receive(), Verdict)
        assert len(passes) < 5
        assert (await slow.receive()).bonus == expected[0]
        assert passes[0][0] == passes[1][0] == 20


async def test_drafts_in_flight_are_answered_in_order(truth):
    async with serving() as verifier, talking(verifier) as talk:
        await talk.open(verifier.describe())
        await talk.draft(0, PROMPT[:-1], PROMPT[-1])
        for i in range(20):
            await talk.draft(len(PROMPT) + i, (), truth[i])
        verdicts = [await talk.receive() for _ in range(21)]
        assert [v.seq for v in verdicts] == list(range(1, 22))
        assert [v.bonus for v in verdicts] == truth[:21]


async def test_drain_answers_what_is_under_way_and_then_ends_streams(truth):
    async with serving() as verifier, talking(verifier) as talk, talking(verifier) as idle:
        await talk.open(verifier.describe())
        await idle.open(verifier.describe())
        await talk.draft(0, PROMPT[:-1], PROMPT[-1])
        await asyncio.sleep(0)  # lets the reader take it
        await asyncio.sleep(0)
        verifier.drain()
        verifier.drain()
        assert (await talk.receive()).bonus == truth[0]
        assert (await talk.refusal()).reason is Reason.SHUTTING_DOWN
        assert (await idle.refusal()).reason is Reason.SHUTTING_DOWN
        async with talking(verifier) as late:
            with pytest.raises(Refusal, match="shutting down"):
                await late.open(verifier.describe())
        await verifier.stop()


async def test_a_client_that_does_not_read_is_not_listened_to():
    async with serving() as verifier, talking(verifier) as talk:
        await talk.open(verifier.describe())
        for i in range(2000):
            await talk.send(Ping(i))
        await talk.send(Close())
        assert (await talk.receive()).nonce == 0
        await asyncio.sleep(0)
        (stream,) = verifier._streams
        assert len(stream._frames) <= 256
        pongs = [frame async for frame in _rest(talk)]
        assert [pong.nonce for pong in pongs] == list(range(1, 2000))


async def _rest(talk):
    while (frame := await talk.receive()) is not None:
        yield frame


async def test_a_stream_that_is_cancelled_twice_still_lets_go_of_its_session():
    """gRPC may cancel a call whose stream is just ending for another reason."""
    async with serving() as verifier:
        about, ended, may_end = verifier.describe(), asyncio.Event(), asyncio.Event()

        async def incoming():
            yield Open(about.protocol_version, about.target_fingerprint, about.tokenizer_fingerprint)
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
                await may_end.wait()

        async def call() -> None:
            async for _ in verifier.session(incoming()):
                opened.set()

        opened = asyncio.Event()
        calling = asyncio.create_task(call())
        await asyncio.wait_for(opened.wait(), 20)
        calling.cancel()
        await asyncio.wait_for(ended.wait(), 20)
        calling.cancel()
        await asyncio.wait([calling])
        assert verifier.stats().active == 0
        may_end.set()


async def test_a_session_that_has_failed_is_not_taken_over(truth):
    async with serving() as verifier, talking(verifier) as first, talking(verifier) as second:
        opened = await first.open(verifier.describe())
        await first.prompt(PROMPT)
        (stream,) = verifier._streams
        stream.faulty = True  # as when a request of it has failed, and its stream is about to end
        again = await second.open(verifier.describe(), session_id=opened.session_id, committed_len=len(PROMPT))
        assert not again.resumed
        assert again.session_id != opened.session_id
        assert (await second.prompt(PROMPT)).bonus == truth[0]
