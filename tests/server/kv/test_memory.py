"""The memory of all sessions against a model of it, with real sessions that compute nothing: every byte is accounted,
nobody's rows are anybody else's, and who goes first."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tiny_targets import FakeRequest

from outrider_drafters.contracts.tap import Activations, StatelessTap
from outrider_proto.frames import TapInfo
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import KVShape, OutOfKVMemory, RowShape
from outrider_server.kv.eviction import EvictionPolicy
from outrider_server.kv.host_copies import RowCopy
from outrider_server.kv.memory import KVMemory, Sharing
from outrider_server.kv.pages import PagePool
from outrider_server.kv.prefix import BLOCK, Prefix
from outrider_server.kv.size import KVLayout

SHAPE = KVShape((RowShape(1, 2, 3),) * 2, torch.float32, torch.device("cpu"))
MIXED = replace(SHAPE, rows=(*SHAPE.rows[:1], RowShape(2, 5, 1), *SHAPE.rows[:1]), readers=((2, 0),))  # as Gemma 4's
ROW = SHAPE.bytes_per_token
TEXTS = [[t] * (2 * BLOCK) + [t + 1] * BLOCK for t in (1, 5)]  # what texts begin with, so that they meet


class KeyTap(StatelessTap):
    """What lies in the keys, which tells whose they are."""

    needs_kv = True
    hidden_layers = ()
    info = TapInfo("key", "test", 2)

    def rows(self, acts: Activations) -> torch.Tensor:
        return acts.keys[0][0]


def stamps(tokens: list[int]) -> torch.Tensor:
    """A value for every position that depends on the whole text up to it, as K/V do."""
    total = np.cumsum((31 * np.array(tokens, dtype=np.int64) + 7) * np.arange(1, len(tokens) + 1))
    return torch.from_numpy((total % 65521).astype(np.float32))


def written_by(shape: KVShape, layer: int) -> int:
    return dict(shape.readers).get(layer, layer)


def run(sequence: Sequence, num_rows: int | None = None) -> None:
    """What a pass would do over the tokens whose rows are missing."""
    first = sequence.slot.length
    chain = sequence.uncomputed[:num_rows]
    values = stamps(sequence.tokens[: first + len(chain)])[first:]
    shape = sequence.slot.shape
    for layer, row in enumerate(shape.rows):
        keys = (values + written_by(shape, layer))[None, :, None]
        sequence.slot.write(
            layer, keys.expand(row.kv_heads, -1, row.key_dim), -keys.expand(row.kv_heads, -1, row.value_dim)
        )
    sequence.commit(chain, (), (), None)
    if sequence.tap is not None:
        sequence.add_features(sequence.tap_state.rows(sequence.activations()).numpy())


def go_on(sequence: Sequence, base_len: int, context: list[int], request: object | None = None) -> None:
    """Run a request to its end, or up to the end of `request`."""
    request = request or FakeRequest()
    sequence.begin(request, base_len, context, 3)
    run(sequence)


def check_rows(*sequences: Sequence) -> None:
    for sequence in sequences:
        check_rows_of(sequence)


def check_rows_of(sequence: Sequence) -> None:
    values, stands = stamps(sequence.tokens), sequence.slot.length
    keys, negated = sequence.slot.rows(0, stands)
    for layer in range(len(sequence.slot.shape.rows)):
        expected = values[:stands] + written_by(sequence.slot.shape, layer)
        assert torch.equal(keys[layer][-1, :, -1], expected)
        assert torch.equal(negated[layer][-1, :, -1], -expected)
    if sequence.tap is not None:
        first, rows = sequence.features(0)
        assert first == 0
        assert np.array_equal(rows[:, 0], values[: len(rows)].numpy())
        assert len(rows) == sequence.num_computed


class MemoryMachine(RuleBasedStateMachine):
    """Sessions of two payers begin, go on, are cut, park, end, some of them half-way; there is room for a few."""

    shape = SHAPE

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Sequence] = []
        self.working: dict[Sequence, FakeRequest] = {}
        self.half_way: list[Sequence] = []

    @initialize(
        small=st.sampled_from([0, BLOCK, 3 * BLOCK, 10**6]),
        limit=st.sampled_from([800, 1500, 5000]),
        sharing=st.sampled_from(["payer", "all"]),
        layout=st.sampled_from(["contiguous", "paged"]),
        swap=st.sampled_from([0, 300, 5000]),
    )
    def begin(self, small: int, limit: int, sharing: Sharing, layout: KVLayout, swap: int) -> None:
        self.limit_bytes, small_bytes, self.swap_bytes = (
            rows * (self.shape.bytes_per_token + 4 * 2) for rows in (limit, small, swap)
        )
        self.memory = KVMemory(
            self.shape, self.limit_bytes, sharing, small_bytes, layout=layout, swap_bytes=self.swap_bytes
        )

    @rule(payer=st.sampled_from(["", "p"]))
    def open(self, payer: str) -> None:
        if len(self.sessions) < 8:
            self.sessions.append(Sequence(self.memory, KeyTap(), None, payer))

    @rule(
        which=st.integers(0, 7),
        keeps=st.floats(0, 1),
        text=st.sampled_from(TEXTS),
        more=st.integers(0, 400),
        stays=st.booleans(),
        part=st.integers(0, 500),
    )
    def go_on(self, which: int, keeps: float, text: list[int], more: int, stays: bool, part: int) -> None:
        if not self.sessions:
            return
        sequence = self.sessions[which % len(self.sessions)]
        self.stop(sequence)
        base_len = int(keeps * len(sequence.tokens))
        expected = sequence.tokens[:base_len] + (text + [more] * more if base_len == 0 else [more] * (more % 50))
        self.working[sequence] = request = FakeRequest()
        try:
            sequence.begin(request, base_len, expected[base_len:], 3)
        except OutOfKVMemory:
            self.stop(sequence)
            assert sequence.tokens == expected
            return
        assert sequence.tokens == expected
        self.half_way.append(sequence)
        if part:  # else: others come before it has run anything
            self.run_on(-1, part)
        if not stays:
            self.stop(sequence)

    @rule(which=st.integers(0, 7), part=st.integers(1, 90))
    def run_on(self, which: int, part: int) -> None:
        if not self.half_way:
            return
        sequence = self.half_way[which % len(self.half_way)]
        try:
            sequence.reserve(3)
        except OutOfKVMemory:
            return
        run(sequence, part)
        if not sequence.num_uncomputed:
            self.half_way.remove(sequence)

    def stop(self, sequence: Sequence) -> None:
        if sequence in self.working:
            self.working.pop(sequence).over = True
        if sequence in self.half_way:
            self.half_way.remove(sequence)

    @rule(which=st.integers(0, 7))
    def park(self, which: int) -> None:
        if self.sessions:
            self.sessions[which % len(self.sessions)].parked ^= True

    @rule(which=st.integers(0, 7))
    def end(self, which: int) -> None:
        if self.sessions:
            sequence = self.sessions.pop(which % len(self.sessions))
            self.stop(sequence)
            sequence.release()

    @rule(which=st.integers(0, 7))
    def fail(self, which: int) -> None:
        if self.sessions:
            self.sessions[which % len(self.sessions)].invalidate()

    @rule()
    def run_out(self) -> None:
        self.memory.free_all()
        assert all(not sequence.slot.holds_any for sequence in self.sessions if sequence.status != "working")

    @invariant()
    def everybody_has_their_own_rows(self) -> None:
        check_rows(*self.sessions)

    @invariant()
    def every_byte_is_accounted(self) -> None:
        memory = self.memory
        own = sum(sequence.slot.num_bytes for sequence in self.sessions)
        shared = {link for sequence in self.sessions if sequence.slot.prefix for link in sequence.slot.prefix.chain()}
        assert shared <= set(memory.prefix_cache.all)
        assert memory.prefix_cache.num_bytes == sum(prefix.buffer.num_bytes for prefix in memory.prefix_cache.all)
        assert (
            memory.budget.used_bytes
            == own + memory.prefix_cache.num_bytes + memory.pool.spare_bytes
            <= self.limit_bytes
        )

    @invariant()
    def copies_are_of_what_their_owners_hold(self) -> None:
        copies = self.memory.host._copies
        assert self.memory.host.used_bytes == sum(copy.num_bytes for copy in copies.values()) <= self.swap_bytes
        for sequence, copy in copies.items():
            values = stamps(sequence.tokens[: copy.length])
            assert 0 < copy.length == len(values)
            assert list(copy.rows) == [0, 1]
            assert torch.equal(copy.rows[1][0][0, : copy.length, 0], values + 1)
            assert torch.equal(copy.rows[0][1][0, : copy.length, 0], -values)
            assert np.array_equal(copy.features[: copy.length, 0], values.numpy())

    @invariant()
    def a_page_has_one_owner(self) -> None:
        if isinstance(self.memory.pool, PagePool):
            owners = [*(sequence.slot for sequence in self.sessions), *self.memory.prefix_cache.all]
            held = [page for owner in owners for page in owner.buffer.pages]
            assert sorted([*held, *self.memory.pool._free]) == list(range(self.memory.pool.num_pages))

    @invariant()
    def users_are_counted(self) -> None:
        for prefix in self.memory.prefix_cache.all:
            ends = sum(sequence.slot.prefix is prefix for sequence in self.sessions)
            children = sum(other.parent is prefix for other in self.memory.prefix_cache.all)
            assert prefix.users == ends + children
            chains = [sequence.slot.prefix.chain() for sequence in self.sessions if sequence.slot.prefix]
            assert prefix.num_slots == sum(prefix in chain for chain in chains)

    @invariant()
    def what_a_name_says_is_held(self) -> None:
        prefixes = self.memory.prefix_cache
        assert set(prefixes._copies) <= set(self.memory.prefix_cache.all)
        assert set(prefixes._copies.values()) <= set(self.sessions)
        for name, owner in prefixes._owners.items():
            assert name in owner.block_hashes
            assert isinstance(owner, Prefix) or BLOCK * (owner.block_hashes.index(name) + 1) <= owner.num_computed

    def teardown(self) -> None:
        for sequence in self.sessions:
            sequence.release()
        self.memory.free_all()
        assert self.memory.budget.used_bytes == self.memory.host.used_bytes == 0


class MixedMemoryMachine(MemoryMachine):
    """With layers of two shapes, one of which reads another's rows."""

    shape = MIXED


TestMemory = MemoryMachine.TestCase
TestMixedMemory = MixedMemoryMachine.TestCase
TestMemory.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def shared_memory(sharing: str = "payer", layout: KVLayout = "auto") -> KVMemory:
    """With room, and nothing too small to share."""
    return KVMemory(SHAPE, 100_000 * ROW, sharing, small_bytes=0, layout=layout)


def new(memory: KVMemory, length: int, seed: int = 0, payer: str = "", tap: KeyTap | None = None) -> Sequence:
    sequence = Sequence(memory, tap, None, payer)
    go_on(sequence, 0, [(seed + i) % 1000 for i in range(length)])
    sequence._request = None
    return sequence


def test_where_room_cannot_be_made_nobody_loses_anything():
    memory = KVMemory(SHAPE, 4 * 128 * ROW, "none")
    idle, busy = new(memory, 100), new(memory, 250, 500)
    busy.begin(FakeRequest(), 250, [], 1)
    with pytest.raises(OutOfKVMemory):
        new(memory, 300, 1000)
    assert idle.slot.length == 100


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@pytest.mark.parametrize("tap", [None, KeyTap()])
def test_an_evicted_session_gets_its_rows_back_from_the_host(layout, tap):
    row = ROW + (8 if tap else 0)
    memory = KVMemory(SHAPE, 200 * row, "none", layout=layout, swap_bytes=300 * row)
    sequence = new(memory, 100, tap=tap)
    other = new(memory, 120, 500, tap=tap)
    assert sequence.num_uncomputed == 100
    assert memory.host.used_bytes == 100 * row
    sequence.begin(FakeRequest(), 90, [7, 8], 2)  # another text behind the first 90 tokens
    assert sequence.uncomputed == [7, 8]
    check_rows(sequence)
    run(sequence)
    check_rows(sequence)
    assert (memory.evictions, memory.host.restored_tokens, other.num_uncomputed) == (2, 90, 120)


def test_what_failed_is_not_restored():
    memory = KVMemory(SHAPE, 200 * ROW, "none", swap_bytes=300 * ROW)
    sequence = new(memory, 100)
    new(memory, 120, 500)
    assert memory.host.used_bytes
    sequence.invalidate()
    assert not memory.host.used_bytes
    sequence.begin(FakeRequest(), 100, [], 2)
    assert sequence.num_uncomputed == 100


def test_where_the_machine_has_no_memory_for_a_copy_rows_run_again(monkeypatch):
    def fail(*_: object) -> RowCopy:
        raise MemoryError

    memory = KVMemory(SHAPE, 200 * ROW, "none", swap_bytes=300 * ROW)
    sequence = new(memory, 100)
    monkeypatch.setattr(RowCopy, "of", fail)
    new(memory, 120, 500)
    assert (sequence.num_uncomputed, memory.host.used_bytes) == (100, 0)


def test_a_machine_without_memory_is_no_room_and_the_process_goes_on():
    memory = KVMemory(SHAPE)  # as much as there is
    sequence = new(memory, 100)
    with pytest.raises(OutOfKVMemory):
        sequence.reserve(2**50)
    assert sequence.num_uncomputed == 0
    assert memory.budget.used_bytes == sequence.slot.num_bytes + memory.pool.spare_bytes
    go_on(sequence, 100, [5])
    check_rows(sequence)


def test_a_common_beginning_is_stored_once():
    memory = shared_memory()
    system = [i % 900 for i in range(40 * BLOCK)]
    sessions = []
    for i in range(10):
        sequence = Sequence(memory, None)
        go_on(sequence, 0, system + [1000 + i] * 5)
        sessions.append(sequence)
    assert memory.prefix_hits_tokens == 9 * len(system)
    assert memory.prefix_cache.num_bytes == len(system) * ROW
    own = sum(sequence.slot.num_bytes for sequence in sessions)
    assert own <= 10 * 256 * ROW
    assert [sequence.slot.start for sequence in sessions] == [len(system)] * 10
    check_rows(*sessions)


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_those_who_came_at_once_come_to_share(layout):
    """Where several have computed the same, one keeps it for all."""
    memory = shared_memory(layout=layout)
    text = [3] * (10 * BLOCK)
    sessions = [Sequence(memory, KeyTap()) for _ in range(3)]
    for sequence in sessions:
        sequence.begin(FakeRequest(), 0, text, 1)
    for sequence in sessions:
        run(sequence)
    assert [sequence.slot.start for sequence in sessions] == [0] * 3  # in the middle of a pass nobody's rows move
    for sequence in sessions:
        sequence.begin(FakeRequest(), 10 * BLOCK, [], 1)
        check_rows(sequence)
    assert [sequence.slot.start for sequence in sessions] == [10 * BLOCK] * 3
    assert memory.prefix_cache.num_bytes == 10 * BLOCK * (ROW + 4 * 2)
    assert memory.prefix_hits_tokens == 0
    assert layout != "paged" or memory.budget.used_bytes == memory.pool.bytes_of((10 + 3) * BLOCK, 2)


@pytest.mark.parametrize(
    ("sharing", "shares"), [("payer", [True, False]), ("all", [True, True]), ("none", [False] * 2)]
)
def test_who_shares_with_whom(sharing, shares):
    memory = shared_memory(sharing)
    new(memory, 100, payer="a")
    assert [bool(new(memory, 100, payer=payer).slot.start) for payer in ("a", "b")] == shares


def test_features_go_along_or_nothing_does():
    memory = shared_memory()
    new(memory, 100)
    one = new(memory, 100, tap=KeyTap())
    assert one.slot.start == 0
    two = new(memory, 100, tap=KeyTap())
    assert two.slot.start == 96
    check_rows(one, two)


def test_a_text_outlives_its_session_where_there_is_room():
    memory = shared_memory()
    new(memory, 100).release()
    assert memory.budget.used_bytes - memory.pool.spare_bytes == 96 * ROW
    sequence = new(memory, 70)
    assert memory.prefix_hits_tokens == 64
    check_rows(sequence)
    assert sorted(len(prefix.tokens) for prefix in memory.prefix_cache.all) == [32, 64]
    memory.free_all()
    assert [prefix.stop for prefix in memory.prefix_cache.all] == []


def test_a_name_that_is_met_by_chance_is_not_believed():
    memory = shared_memory()
    one = new(memory, 64)
    other = Sequence(memory, None)
    other.tokens = list(range(500, 564))
    for name in one.block_hashes:  # as if the hashes of the other text were the same
        memory.prefix_cache._owners[name] = other
    sequence = new(memory, 64)
    assert sequence.slot.start == 0
    check_rows(sequence)


def test_a_session_is_known_to_the_others_only_once_it_is_whole():
    """Another thread may look at all sessions at any moment of its making."""
    memory, seen = KVMemory(SHAPE), []

    class Watched(dict):
        def __setitem__(self, sequence, value) -> None:
            seen.append(sequence.slot.holds_any)
            super().__setitem__(sequence, value)

    memory._sequences = Watched()
    Sequence(memory, KeyTap())
    assert seen == [False]


def test_many_prefixes_go_in_few_looks_at_them():
    """Whoever ends session after session leaves prefix after prefix."""
    memory, looks = KVMemory(SHAPE), []

    class Watched(set):
        def __iter__(self):
            looks.append(len(self))
            return super().__iter__()

    memory.prefix_cache.all = Watched()
    for first in range(50):
        sequence = Sequence(memory, KeyTap())
        go_on(sequence, 0, [first] * BLOCK)
        sequence.release()
    assert len(memory.prefix_cache.all) == 50
    looks.clear()
    memory.free_all()
    assert not memory.prefix_cache.all
    assert len(looks) <= 4


def test_a_text_may_be_cut_into_any_number_of_prefixes():
    memory, num_blocks = shared_memory(), 600
    text = [i % 1000 for i in range(num_blocks * BLOCK)]
    for count in range(num_blocks, 0, -1):
        sequence = Sequence(memory, None)
        go_on(sequence, 0, text[: count * BLOCK])
        sequence.release()
    assert len(memory.prefix_cache.all) == num_blocks
    sequence = Sequence(memory, None)
    go_on(sequence, 0, [*text, 5])
    assert memory.prefix_hits_tokens == sum(range(1, num_blocks)) * BLOCK + len(text)
    check_rows(sequence)


def test_a_store_made_within_a_pass_serves_others_after_it():
    pool = KVMemory(SHAPE).pool
    with torch.inference_mode():
        buffer = pool.take(10, 0)
    pool.give(buffer)
    assert pool.take(10, 0) is buffer


@pytest.mark.parametrize("length", [3, 90])
def test_rows_move_up_where_there_is_no_memory_to_move_them(length, monkeypatch):
    memory = KVMemory(SHAPE, 100_000 * ROW, small_bytes=0, policy=EvictionPolicy(100_000 * ROW, hold_s=60.0))
    new(memory, 96).release()
    one = Sequence(memory, None)
    go_on(one, 0, list(range(96 + length)))
    assert one.slot.start == 0

    def no_room(*_: object) -> None:
        raise OutOfKVMemory(1)

    monkeypatch.setattr(memory.pool, "take", no_room)
    monkeypatch.setattr(torch.Tensor, "clone", no_room)
    two = Sequence(memory, None)
    with pytest.raises(OutOfKVMemory):
        two.begin(FakeRequest(), 0, one.tokens[:96], 1)
    assert (one.slot.start, one.slot.length) == (96, 96 + length)
    check_rows(one)


def test_a_device_is_asked_to_take_memory_back_only_when_it_has_run_out(monkeypatch):
    """Not at every eviction: it waits for the device."""
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    memory = KVMemory(replace(SHAPE, device=torch.device("cuda")), 10**6, layout="contiguous")
    memory.pool.trim()
    assert not calls
    memory.free_all()
    assert calls == ["empty"]
