"""How large trees the server asks for: none while one client is there, smaller ones as passes fill, and no flicker."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider_server.scheduling.step_stats import StepStats
from outrider_server.scheduling.tree_budget import NO_LIMIT, LoadEstimate, TreeBudget, best_nodes

FIXED_S, DRAFT_S, ROW_S = 0.003, 0.0007, 0.0002  # of a pass, a draft, a row
BATCH_TOKENS, NODES = 1024, 16  # of a pass, of the tree that a client sends unless asked for less


class Room:
    """A server with so many clients who obey; `idle_s` goes by between passes."""

    def __init__(self, beside_s: float = 0.0) -> None:
        self.budget = TreeBudget(BATCH_TOKENS)
        self.beside_s = beside_s  # for each draft, outside the pass
        self.now = 0.0
        self.count = 0

    def run(self, clients: int, num_passes: int, idle_s: float = 0.0) -> list[int]:
        wishes = []
        for _ in range(num_passes):
            self.count += 1
            here = max(clients - self.count % 3, 1)  # not always all of them
            size = min(NODES, self.budget.nodes) if self.budget.nodes else NODES
            drafts = min(here, max(BATCH_TOKENS // (1 + size), 1))
            rows = drafts * (1 + size)
            took_s = FIXED_S + DRAFT_S * drafts + ROW_S * rows
            self.now += took_s + self.beside_s * drafts + idle_s
            trees = tuple([(size, min(size, 2))] * drafts)
            report = StepStats(rows, drafts, 0, drafts, here - drafts, took_s, trees, idle_s=idle_s)
            self.budget.take(report, self.now)
            wishes.append(self.budget.nodes)
        return wishes


def test_nobody_is_asked_anything_who_is_alone():
    assert set(Room().run(1, 200)) == {NO_LIMIT}


def test_the_more_there_are_the_smaller_the_trees():
    asked = [Room().run(clients, 200)[-1] for clients in (4, 16, 64)]
    assert NO_LIMIT not in asked
    assert asked == sorted(asked, reverse=True)
    assert asked[0] > asked[-1]


def test_drafts_that_cost_much_beside_their_pass_make_larger_trees():
    lean, dear = Room().run(16, 200)[-1], Room(beside_s=0.005).run(16, 200)[-1]
    assert lean != NO_LIMIT
    assert dear > lean or dear == NO_LIMIT


def test_a_server_with_time_to_spare_asks_for_nothing():
    """What takes its clients long is not the passes."""
    assert set(Room().run(8, 200, idle_s=0.1)) == {NO_LIMIT}


def test_it_does_not_flicker():
    wishes = Room().run(16, 400)[100:]
    assert sum(one != other for one, other in pairwise(wishes)) <= 4


def test_it_passes_when_the_others_have_gone():
    room = Room()
    assert room.run(64, 100)[-1] != NO_LIMIT
    assert room.run(1, 40)[-1] == NO_LIMIT


@given(st.floats(1, 1000), st.floats(0, 5000) | st.none(), st.floats(0, 3), st.integers(1, 4096))
def test_any_load_has_an_answer(drafts, shared, gain, batch_tokens):
    assert 1 <= best_nodes(LoadEstimate(drafts, 1.0, shared, gain), batch_tokens) <= 128
