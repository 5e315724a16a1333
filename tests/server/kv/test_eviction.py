"""Who gives way to whom in full memory: the rules on plain numbers, and what they bring, in time that is computed."""

import numpy as np
import pytest
import torch
from tiny_targets import FakeRequest

from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import KVShape, OutOfKVMemory, RowShape
from outrider_server.kv.eviction import EvictionPolicy, Holding, Usage, fair_level
from outrider_server.kv.memory import KVMemory

SHAPE = KVShape((RowShape(1, 1, 1),), torch.float32, torch.device("cpu"))
LINK_S, PASS_S, ROW_S = 0.03, 0.004, 3e-5


def holding(payer: str, num_bytes: int, status: str = "idle", used_at: float = 100.0, **usage) -> Holding:
    """One that has had its rows for long."""
    return Holding(Usage(payer, used_at=used_at, **usage), status, num_bytes, num_bytes, bool(num_bytes))


def waiting(payer: str, num_bytes: int, since: float = 99.0) -> Holding:
    return holding(payer, 0, "waiting", 101.5, wanted_bytes=num_bytes, waits_since=since)


@pytest.mark.parametrize(
    ("demands", "level"),
    [([10, 20], np.inf), ([60, 60], 50), ([10, 20, 90], 70), ([10, 50, 50], 45), ([], np.inf), ([200], 100)],
)
def test_those_who_want_less_than_the_level_get_it_and_the_others_share(demands, level):
    assert fair_level(demands, 100) == level


def test_the_parked_go_first_then_the_resting_and_of_each_those_of_the_largest_holder():
    policy = EvictionPolicy(100, hold_s=1.0)
    old, new = holding("a", 10, used_at=0.0, used=1), holding("a", 10, used_at=0.0, used=2)
    large = holding("b", 30, used_at=0.0, used=3)
    parked, large_parked = holding("a", 5, "parked"), holding("b", 5, "parked")
    others = [new, large, old, parked, large_parked]
    assert policy.order(None, others, 100.0) == [large_parked, parked, large, old, new]


def test_what_exceeds_the_fair_level_goes_at_once_even_at_work_to_who_stays_within():
    policy = EvictionPolicy(100, hold_s=1.0)
    hog, small, other = holding("a", 70, "working", placed_at=99.9), holding("b", 20), waiting("c", 20)
    policy.learn(100, 1, 100.0)
    policy.learn(4, 1, 0.01)
    policy.preempt(hog, 99.9)  # a turn would be far off
    assert policy.order(other, [hog, small], 100.0) == [hog]


def test_equals_take_turns_the_longest_waiting_from_the_longest_placed():
    policy = EvictionPolicy(100, hold_s=1.0)
    placed = [holding(str(i), 50, placed_at=i) for i in (2, 1)]
    fresh, first, second = holding("3", 50, placed_at=99.5), waiting("4", 50, 98.0), waiting("5", 50, 99.0)
    assert policy.order(second, [*placed, fresh, first], 100.0) == []
    assert policy.order(first, [*placed, fresh, second], 100.0) == placed[::-1]


def verdicts_per_second(num_clients: int, seconds: float = 12.0) -> float:
    """Of clients that draft, wait for their link, and draft again, on memory for eight; time is computed."""
    now = [0.0]
    limit = 8 * 1536 * SHAPE.bytes_per_token
    policy = EvictionPolicy(limit, hold_s=1.0, patience_s=20.0)
    memory = KVMemory(SHAPE, limit, "none", policy=policy, clock=lambda: now[0])
    due = {Sequence(memory, None): 0.0 for _ in range(num_clients)}
    texts = {sequence: [i] * 1400 for i, sequence in enumerate(due)}
    line: list[Sequence] = []
    num_verdicts = 0
    while now[0] < seconds:
        line += [sequence for sequence, at in due.items() if at <= now[0] and sequence not in line]
        runs = []
        for sequence in line:
            request = FakeRequest()
            try:
                sequence.begin(request, 0, texts[sequence], 4)
                runs.append((sequence, request))
            except OutOfKVMemory:
                pass
        runs = [(sequence, request) for sequence, request in runs if sequence.slot.holds_any]
        num_rows = sum(sequence.num_uncomputed + 4 for sequence, _ in runs)
        now[0] += PASS_S + ROW_S * num_rows
        policy.learn(num_rows, len(runs), PASS_S + ROW_S * num_rows)
        for sequence, request in runs:
            sequence.commit(sequence.uncomputed, (), (), None)
            request.over = True
            line.remove(sequence)
            due[sequence] = now[0] + LINK_S
            num_verdicts += now[0] > seconds / 4  # behind the prompts
    return num_verdicts / (0.75 * seconds)


def test_more_clients_than_there_is_room_for_lose_little():
    best = verdicts_per_second(8)
    for num_clients in (9, 12):
        assert verdicts_per_second(num_clients) > 0.8 * best
