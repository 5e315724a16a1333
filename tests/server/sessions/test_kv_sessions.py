"""Eviction, sharing and want of memory, as sessions see them: not at all, but for the time it takes."""

from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch
from talk import TAP, talking
from tiny_targets import random_tokens, random_tree, target

from outrider_models.core.embedded import model_dirs
from outrider_proto.errors import Reason, UsageError
from outrider_proto.frames import Features, Ping, Pong, Sampling
from outrider_proto.packing import prefix_hash
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.prefix import BLOCK
from outrider_server.kv.size import parse_bytes, show_bytes
from outrider_server.sessions.verifier import Verifier

PROMPTS = [random_tokens(np.random.default_rng(seed), 40) for seed in range(4)]
ROW = target().kv.bytes_per_token + 4 * TAP.info.width


class FakeRequest:
    over = False


@asynccontextmanager
async def serving(rows: int = 10**6, **limits):
    verifier = Verifier(target(), [TAP], LimitsConfig(kv_memory=str(rows * ROW), **limits))
    await verifier.start()
    try:
        yield verifier
    finally:
        await verifier.stop()


@pytest.fixture(scope="module")
def truths() -> list[list[int]]:
    return [plain_greedy(target(), prompt, 20) for prompt in PROMPTS]


async def features_of(talk, *draft, **more) -> tuple[int, np.ndarray]:
    await talk.draft(*draft, **more)
    verdict, features = await talk.receive(), await talk.receive()
    assert isinstance(features, Features)
    return verdict.bonus, features.rows


async def test_an_evicted_session_goes_on_as_if_nothing_had_been(truths):
    """Room for one of two, which take turns; each has its features as well."""
    async with serving(rows=130) as verifier, talking(verifier) as one, talking(verifier) as two:
        talks, rows = (one, two), []
        for talk, prompt, truth in zip(talks, PROMPTS, truths, strict=False):
            await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
            bonus, features = await features_of(talk, 0, prompt[:-1], prompt[-1])
            rows.append(features)
            assert bonus == truth[0]
        for turn in range(1, 4):
            for talk, prompt, truth, before in zip(talks, PROMPTS, truths, rows, strict=False):
                sequence = len(prompt) + 2 * (turn - 1)
                tree = DraftTree.chain([truth[2 * turn - 1]])
                bonus, features = await features_of(talk, sequence, (), truth[2 * turn - 2], tree)
                assert bonus == truth[2 * turn]
                np.testing.assert_allclose(features[: len(prompt)], before, atol=1e-5)
                assert len(features) == sequence + 2
        assert verifier.memory.evictions == 7
        assert verifier.memory.used_bytes <= verifier.memory.budget_bytes


async def test_a_parked_session_is_evicted_and_resumes(truths):
    async with serving(rows=130) as verifier:
        async with talking(verifier) as talk:
            opened = await talk.open(verifier.describe())
            await talk.prompt(PROMPTS[0])
        async with talking(verifier) as other:
            await other.open(verifier.describe())
            await other.prompt(PROMPTS[1])
        assert verifier.memory.evictions == 1
        async with talking(verifier) as talk:
            again = await talk.open(verifier.describe(), session_id=opened.session_id, committed_len=40)
            assert (again.resumed, again.kept_len, again.kept_hash) == (True, 40, prefix_hash(PROMPTS[0]))
            verdict = await talk.verdict(40, (), truths[0][0])
            assert verdict.bonus == truths[0][1]


def occupy(verifier: Verifier, num_rows: int) -> FakeRequest:
    """Hold rows for a request that runs until it is over."""
    request = FakeRequest()
    Sequence(verifier.memory, None).begin(request, 0, [3] * num_rows, 1)
    return request


async def test_a_request_waits_for_room_and_then_runs(truths):
    async with serving(rows=200, room_wait_s=60) as verifier, talking(verifier) as talk:
        request = occupy(verifier, 240)
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        await talk.draft(0, PROMPTS[1][:-1], PROMPTS[1][-1])
        await talk.send(Ping(1))
        assert isinstance(await talk.receive(), Pong)  # by now it is in line
        request.over = True
        assert (await talk.receive()).bonus == truths[1][0]


async def test_who_waits_too_long_is_refused(truths):
    async with serving(rows=200, room_wait_s=0) as verifier:
        request = occupy(verifier, 240)
        async with talking(verifier) as talk:
            await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
            await talk.draft(0, PROMPTS[1][:-1], PROMPTS[1][-1])
            assert (await talk.refusal()).reason is Reason.SERVER_FULL
        request.over = True
        async with talking(verifier) as talk:
            await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
            assert (await talk.prompt(PROMPTS[1])).bonus == truths[1][0]


async def test_a_text_that_can_never_fit_is_refused_at_once():
    async with serving(rows=100) as verifier, talking(verifier) as talk:
        await talk.open(verifier.describe())
        await talk.draft(0, PROMPTS[0] * 4, 5)
        assert (await talk.refusal()).reason is Reason.CONTEXT_FULL


async def test_a_pass_that_finds_no_memory_is_refused_and_the_session_stays(truths, monkeypatch):
    """Torch's own failure: no way to have it happen in the middle of a pass but to say so."""
    async with serving() as verifier:
        async with talking(verifier) as talk:
            opened = await talk.open(verifier.describe())
            await talk.prompt(PROMPTS[0])
            with monkeypatch.context() as patched:
                patched.setattr(Target, "forward", _no_memory)
                await talk.draft(40, (), truths[0][0])
                assert (await talk.refusal()).reason is Reason.SERVER_FULL
        async with talking(verifier) as talk:
            again = await talk.open(verifier.describe(), session_id=opened.session_id, committed_len=40)
            assert again.kept_len == 40
            assert (await talk.verdict(40, (), truths[0][0])).bonus == truths[0][1]


def _no_memory(*_: object) -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")


async def test_what_a_closed_session_held_is_given_back():
    async with serving(shared_prefixes="none") as verifier:
        for _ in range(3):
            async with talking(verifier) as talk:
                await talk.open(verifier.describe())
                await talk.prompt(PROMPTS[0])
            await forgotten(verifier)
        assert verifier.memory.used_bytes == verifier.memory.spare_bytes
        assert verifier.memory.pool.num_allocated == 1


async def forgotten(verifier: Verifier) -> None:
    """Wait until the engine thread has done all its work."""
    verifier._sessions.forget_where(lambda _: True)
    async with talking(verifier) as talk:
        await talk.open(verifier.describe())


async def test_sessions_share_what_their_texts_begin_with(truths):
    """And each may leave it again: cut below it, then go another way."""
    common = PROMPTS[0] + PROMPTS[1]
    async with serving() as verifier, talking(verifier) as one, talking(verifier) as two:
        for talk, last in ((one, PROMPTS[2]), (two, PROMPTS[3])):
            await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
            bonus, rows = await features_of(talk, 0, (*common, *last[:-1]), last[-1])
            assert bonus == plain_greedy(target(), common + last, 1)[0]
            assert len(rows) == len(common) + len(last)
        memory = verifier.memory
        assert memory.prefix_hits_tokens == 2 * BLOCK
        assert memory.prefix_bytes == 2 * BLOCK * ROW
        for cut in (70, 50, 3):
            verdict = await two.verdict(cut, (), PROMPTS[2][0])
            assert verdict.bonus == plain_greedy(target(), [*common[:cut], PROMPTS[2][0]], 1)[0]
        verdict = await one.verdict(100, (), 9)
        text = (common + PROMPTS[2])[:100]
        assert verdict.bonus == plain_greedy(target(), [*text, 9], 1)[0]


@torch.inference_mode()
def run(engine: Engine, sequence: Sequence, prompt: list[int], count: int, sampler: Sampler) -> list[int]:
    """An answer in cycles of random trees; `sequence` may begin with what others hold."""
    sequence.begin(FakeRequest(), 0, prompt[:-1], 20)
    rng, answer = np.random.default_rng(len(prompt)), [prompt[-1]]
    while len(answer) <= count:
        tree = random_tree(rng, 6, engine.target.vocab_size)
        result = engine.verify([StepInput(sequence, [*sequence.uncomputed, answer[-1]], tree, sampler)])[0]
        engine.commit(result)
        assert result.accepted is not None
        answer += [*tree.path_tokens(result.accepted.path), result.accepted.bonus]
    return answer[1 : count + 1]


def embedded() -> Target:
    if "target" not in model_dirs():
        pytest.skip("this installation has no embedded target")
    return Target.load(str(model_dirs()["target"]))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, top_k=40, seed=3)], ids=["greedy", "sampled"])
def test_answers_of_the_embedded_target_are_the_same_with_shared_prefixes_and_without(sampling):
    big, rng = embedded(), np.random.default_rng(0)
    system = random_tokens(rng, 100, big.vocab_size)
    prompts = [system[: rng.integers(20, 100)] + random_tokens(rng, 12, big.vocab_size) for _ in range(8)]
    engine, answers, held_rows = Engine(big), {}, {}
    for sharing in ("payer", "none"):
        memory = KVMemory(big.kv, sharing=sharing)
        sessions = [Sequence(memory, None) for _ in prompts]
        answers[sharing] = [
            run(engine, sequence, prompt, 4, Sampler(sampling))
            for sequence, prompt in zip(sessions, prompts, strict=True)
        ]
        held_rows[sharing] = [sequence.slot.rows(0, len(prompts[i]) - 1) for i, sequence in enumerate(sessions)]
        assert (memory.prefix_hits_tokens > 5 * BLOCK) == (sharing == "payer")
    assert answers["payer"] == answers["none"]
    for shared, own in zip(held_rows["payer"], held_rows["none"], strict=True):
        torch.testing.assert_close(shared, own, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2**31), ("512M", 2**29), ("1.5 GiB", 3 * 2**29), ("1000", 1000), ("7KB", 7168)]
)
def test_sizes_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "2 gibibytes", "1e9", "²GiB"])
def test_what_is_no_size_is_named(text):
    with pytest.raises(UsageError, match="2GiB"):
        LimitsConfig(kv_memory=text)


def test_sizes_as_they_are_shown():
    assert [show_bytes(n) for n in (10, 2048, 3 * 2**29)] == ["10 B", "2 KiB", "1.5 GiB"]
