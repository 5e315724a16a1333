"""No memory left: sessions beyond the budget are computed again or refused, and an allocation that fails ends one."""

import asyncio

import pytest
from stage import ANSWER_S, NEW, PROMPT, answer, client, opened, plain, server

from outrider_proto.errors import Reason, Refusal

from ..marks import needs_int8

MARK = 77  # a token of the prompt that there is no memory for
NUM_CLIENTS = 4
LONG = 300


def long_prompt(number: int) -> tuple[int, ...]:
    """Prompts that share no prefix."""
    return tuple(3 + (number * 31 + place * 7) % 200 for place in range(LONG))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("int8", marks=[needs_int8, pytest.mark.slow])])
async def test_more_long_sessions_than_there_is_room_for_all_finish_exactly(dtype):
    async with server(dtype=dtype) as running:
        memory = running.verifier.memory
        row = memory.pool.bytes_of(1, running.verifier.describe().taps[0].width)
    budget = 2 * 512 * row  # two contexts
    async with server(dtype=dtype, kv_memory=str(budget), room_wait_s=ANSWER_S) as running:
        clients = [client(running.address) for _ in range(NUM_CLIENTS)]
        try:
            for _ in range(2):
                writing = (answer(mine, long_prompt(number)) for number, mine in enumerate(clients))
                texts = await asyncio.gather(*writing)
                assert texts == [plain(long_prompt(number), dtype=dtype) for number in range(NUM_CLIENTS)]
                assert running.verifier.memory.budget.used_bytes <= budget
            assert running.verifier.memory.evictions
        finally:
            for mine in clients:
                await mine.close()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
async def test_an_allocation_that_fails_ends_one_session(monkeypatch, error):
    async with server() as running:
        engine = running.verifier._engine_loop._passes._engine
        launch = engine.launch

        def short_of_memory(inputs):
            if any(MARK in (*work.chain, *work.sequence.tokens) for work in inputs):
                raise error
            return launch(inputs)

        monkeypatch.setattr(engine, "launch", short_of_memory)
        async with client(running.address) as mine, client(running.address) as other:
            others = asyncio.create_task(answer(other, max_new_tokens=2 * NEW))
            with pytest.raises(Refusal) as refused:
                await answer(mine, (*PROMPT, MARK))
            assert refused.value.reason in (Reason.INTERNAL, Reason.SERVER_FULL)
            assert await others == plain(PROMPT, 2 * NEW)
            assert await answer(mine) == plain()  # a session of its own


async def test_a_fault_of_the_loop_itself_leaves_nobody_waiting(monkeypatch):
    """What is under way is refused; a stream that was about to open does open."""
    async with server() as running:
        thread = running.verifier._engine_loop
        step, faults = thread._step, [RuntimeError("for the test")]

        def fails_once():
            if faults:
                raise faults.pop()
            step()

        monkeypatch.setattr(thread, "_step", fails_once)
        async with opened(running) as (talk, _):  # its question was in the line
            assert not faults
            faults.append(RuntimeError("for the test"))
            await talk.draft(0, PROMPT[:-1], PROMPT[-1])
            assert (await talk.refusal()).reason is Reason.INTERNAL
        async with client(running.address) as mine:
            assert await answer(mine) == plain()
