"""Eviction, sharing and want of memory, as sessions see them: not at all, but for the time it takes; nor where
a target's attention is not Llama's."""

import asyncio
from functools import cache

import numpy as np
import pytest
from talk import TAP, conversing, serving, started, talking
from tiny_targets import FakeRequest, random_tokens, target, tree_around

from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_proto.errors import Reason, UsageError
from outrider_proto.frames import Decode, Features, Finish, Verdict
from outrider_proto.packing import prefix_hash
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.kv.size import MemorySize
from outrider_server.scheduling.request_queues import PrefixQuery
from outrider_server.security.principal import Principal
from outrider_server.sessions import verifier as verifier_module
from outrider_server.sessions.verifier import Verifier

PROMPTS = [random_tokens(np.random.default_rng(seed), 40) for seed in range(4)]
ROW = target().kv.bytes_per_token + 4 * TAP.info.width


def memory_of(rows: int) -> str:
    return str(rows * ROW)


@pytest.fixture(scope="module")
def truths() -> list[list[int]]:
    return [plain_greedy(target(), prompt, 20) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("hog", "others"),
    [(Principal("long"), [Principal("a"), Principal("b")]), (Principal(address="long"), [Principal(address="a")] * 2)],
    ids=["keys", "addresses"],
)
async def test_who_has_most_of_the_memory_gives_way_in_the_middle_of_an_answer(hog, others):
    """A long answer holds nine tenths; short prompts of others do not wait for its end, nor change it."""
    long = random_tokens(np.random.default_rng(1), 200)
    async with serving(kv_memory=memory_of(420), room_wait_s=60) as verifier, talking(verifier, hog) as long_talk:
        await long_talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        await long_talk.send(Decode(1, 0, tuple(long[:-1]), long[-1], 150))
        verdicts = [await long_talk.receive()]
        for i, principal in enumerate(others):
            async with conversing(verifier, principal, tap=TAP) as talk:
                assert (await talk.prompt(PROMPTS[i])).bonus == plain_greedy(target(), PROMPTS[i], 1)[0]
        while verdicts[-1].finish is Finish.NOT_YET:
            verdicts.append(await long_talk.receive())
        assert [verdict.bonus for verdict in verdicts] == plain_greedy(target(), long, 150)
        assert verifier.memory.evictions


@pytest.mark.parametrize(
    ("rows", "context"), [(10**6, 512), (2000, 512), (300, 300)], ids=["plenty", "short texts may take all", "all"]
)
def test_the_default_context_is_one_that_the_memory_holds(rows, context, caplog):
    limits = LimitsConfig(kv_memory=str(rows * ROW))
    verifier = Verifier(target(), [TAP], limits, fits_context=True)
    assert verifier.describe().max_context == context
    assert ("of the target's 512 tokens" in caplog.text) == (context < 512)


def occupy(verifier: Verifier, num_rows: int) -> Sequence:
    """Hold rows for a request that runs."""
    sequence = Sequence(verifier.memory, None)
    sequence.begin(FakeRequest(), 0, [3] * num_rows, 1)
    return sequence


def leave(verifier: Verifier, sequence: Sequence) -> None:
    """End it, in the engine thread."""
    verifier._engine_loop.submit(PrefixQuery(sequence, 0, lambda _: sequence.release()))


async def test_who_waits_too_long_is_refused(truths, monkeypatch):
    monkeypatch.setattr(verifier_module, "_HOLD_S", 3600.0)
    async with serving(kv_memory=memory_of(200), room_wait_s=0) as verifier:
        occupant = occupy(verifier, 240)
        async with conversing(verifier, tap=TAP) as talk:
            await talk.draft(0, PROMPTS[1][:-1], PROMPTS[1][-1])
            assert (await talk.refusal()).reason is Reason.SERVER_FULL
        leave(verifier, occupant)
        async with conversing(verifier, tap=TAP) as talk:
            assert (await talk.prompt(PROMPTS[1])).bonus == truths[1][0]


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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2**31),
        ("512M", 2**29),
        ("1.5 GiB", 3 * 2**29),
        ("1000", 1000),
        ("7KB", 7168),
        ("25%", 25 * 10**7),
        ("100 %", 10**9),
    ],
)
def test_sizes_as_people_write_them(text, size):
    assert MemorySize.parse(text).of(10**9) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "2 gibibytes", "1e9", "²GiB", "0%", "101%", "1K%"])
def test_what_is_no_size_is_named(text):
    with pytest.raises(UsageError, match="2GiB"):
        LimitsConfig(kv_memory=text)


async def test_a_draft_that_can_never_fit_leaves_the_session_as_it_was(truths):
    prompt = PROMPTS[0]
    async with serving(kv_memory=memory_of(100)) as verifier:
        async with talking(verifier) as talk:
            session = (await talk.open(verifier.describe())).session_id
            await talk.prompt(prompt)
            await talk.draft(3, prompt * 4, 5)
            refusal = await talk.refusal()
            assert (refusal.reason, "--kv-memory" in refusal.message) == (Reason.CONTEXT_FULL, True)
        async with talking(verifier) as talk:
            opened = await talk.open(verifier.describe(), session_id=session, committed_len=len(prompt))
            assert (opened.kept_len, opened.kept_hash) == (len(prompt), prefix_hash(prompt))
            assert (await talk.verdict(len(prompt), (), truths[0][0])).bonus == truths[0][1]


NAMES = ["gpt-oss", "gemma4", "gemma4-shared"]
NEW_TOKENS = 40
BEGINNING = random_tokens(np.random.default_rng(0), 70)
RELATED = [BEGINNING + random_tokens(np.random.default_rng(seed), 20 + 9 * seed) for seed in range(1, 6)]


@cache
def answer_to(name: str, which: int) -> tuple[int, ...]:
    return tuple(plain_greedy(target(name), RELATED[which], NEW_TOKENS))


async def conversation(verifier: Verifier, name: str, which: int, tap: str) -> list[int]:
    """The answer by drafts of trees, some of whose branches are right; it waits between them, as over a link."""
    rng, said = np.random.default_rng(which), list[int]()
    async with conversing(verifier, tap=tap) as talk:
        prompt = RELATED[which]
        text, context, root, finish = [], prompt[:-1], prompt[-1], Finish.NOT_YET
        while len(said) < NEW_TOKENS and finish is Finish.NOT_YET:
            rest = list(answer_to(name, which)[len(said) :])
            tree = tree_around(rng, rest, int(rng.integers(0, 4)), int(rng.integers(0, 6)))
            await talk.draft(len(text), context, root, tree, features_from=0)
            while not isinstance(frame := await talk.receive(), Verdict):
                assert isinstance(frame, Features)
            accepted = tree.path_tokens(frame.path)
            text += [*context, root, *accepted]
            said += [*accepted, *([] if frame.bonus is None else [frame.bonus])]
            context, root, finish = [], frame.bonus, frame.finish
            await asyncio.sleep(0)
    return said[:NEW_TOKENS]


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@pytest.mark.parametrize("name", NAMES)
async def test_sessions_say_what_the_plain_loop_says(name, layout, monkeypatch):
    """Features are on for half of them: their rows are no one else's."""
    monkeypatch.setattr(verifier_module, "_HOLD_S", 0.0)
    served = target(name)
    truths = [list(answer_to(name, which)) for which in range(len(RELATED))]  # before it serves
    tap = LastHiddenTap(served.hidden_size)
    rows = 360 * (served.kv.bytes_per_token + 4 * tap.info.width)
    limits = LimitsConfig(kv_memory=str(rows), kv_layout=layout, kv_swap=str(rows), room_wait_s=60)
    verifier = Verifier(served, [tap], limits)
    async with started(verifier):
        taps = [tap.info.fingerprint if which % 2 else "" for which in range(len(RELATED))]
        answers = await asyncio.gather(*(conversation(verifier, name, which, own) for which, own in enumerate(taps)))
        again = await conversation(verifier, name, 0, "")
        memory = verifier.memory
        assert memory.prefix_hits_tokens > 0
        assert memory.evictions > 0
    assert [*answers, again] == [*truths, truths[0]]
