"""The server drafts beside its target: the plain loop's text in fewer passes, and what is refused."""

import asyncio
import gc
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from talk import PROMPT, TAP, conversing, serving, talking, text_of
from tiny_targets import VOCAB, build, target

from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.checkpoints.target_weights import target_sizes
from outrider_drafters.contracts.drafter import UNLIMITED, Drafter
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.eagle2.network import Eagle2, Eagle2Sizes
from outrider_drafters.families.feature_drafter import FeatureState
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_drafters.trees.tree_tuner import TreeTuner
from outrider_proto.errors import Reason
from outrider_proto.frames import MAX_EXPANDED, Cancel, Decode, Draft, Features, Finish, Sampling, ServerTree, Verdict
from outrider_proto.packing import prefix_hash
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine
from outrider_server.engine.load import load_drafters
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.server_drafter import SessionDrafter
from outrider_server.engine.target import Target
from outrider_server.kv.memory import KVMemory
from outrider_server.scheduling import server_drafting
from outrider_server.scheduling.engine_loop import EngineLoop
from outrider_server.scheduling.reply_poster import ReplyRoute, RequestDone
from outrider_server.scheduling.request import new_request
from outrider_server.scheduling.step_stats import StepStats
from outrider_server.security.principal import ANONYMOUS, Principal, Quota

HAVE = len(PROMPT)
SHAPE = ServerTree(3, 4, 12)


class Prophet:
    """A drafter that knows a text by heart, but for every `errs`th token; eats what TAP makes. It minds that every
    token before the root has its features when it is asked."""

    family = "prophet"
    tap = TAP.info
    vocab_size = VOCAB
    stale_tolerant = True
    tree_in_one_pass = False
    levels_per_pass = 1
    plan = None

    def __init__(self, text: list[int], errs: int = 7) -> None:
        self.text = [(token + 1) % VOCAB if i % errs == 0 else token for i, token in enumerate(text)]
        self.drafts = 0
        self.levels = []  # states that ran them
        self.on_level = lambda: None

    def new_state(self) -> "Foresight":
        return Foresight(self)


class Foresight:
    max_levels = UNLIMITED

    def __init__(self, prophet: Prophet) -> None:
        self.prophet = prophet
        self.tokens: list[int] = []
        self.num_features = 0
        self.depths: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def append(self, tokens) -> None:
        self.tokens.extend(tokens)

    def add_features(self, first: int, rows: torch.Tensor) -> None:
        assert first <= self.num_features
        assert rows.shape[1] == TAP.info.width
        self.num_features = max(self.num_features, first + len(rows))

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[num_tokens:]
        self.num_features = min(self.num_features, num_tokens)

    def root_logits(self) -> torch.Tensor:
        assert self.num_features >= self.num_tokens - 1
        self.prophet.drafts += 1
        self.prophet.levels.append(id(self))
        self.prophet.on_level()
        self.depths = []
        return self._next(0)

    def expand(self, tokens, parents) -> torch.Tensor:
        self.prophet.levels.append(id(self))
        self.prophet.on_level()
        self.depths += [1 + (0 if parent < 0 else self.depths[parent]) for parent in parents]
        return torch.stack([self._next(depth) for depth in self.depths[-len(tokens) :]])

    def _next(self, depth: int) -> torch.Tensor:
        logits = torch.zeros(VOCAB)
        place = self.num_tokens + depth
        logits[self.prophet.text[place] if place < len(self.prophet.text) else 5] = 6.0
        return logits


async def said(
    verifier, sampling: Sampling, count: int, tree: ServerTree | None, key: Principal = ANONYMOUS
) -> list[Verdict]:
    """An answer to PROMPT; each session in a stream of its own."""
    async with conversing(verifier, key, tap=TAP, sampling=sampling) as talk:
        return await talk.decode(0, PROMPT[:-1], PROMPT[-1], count, tree=tree)


RULES = [Sampling(), Sampling(0.9, seed=8), Sampling(1.2, top_k=20, seed=3)]


@pytest.mark.parametrize("sampling", RULES, ids=["greedy", "sampled", "top-k"])
async def test_the_text_is_the_plain_loops_in_fewer_passes(sampling):
    prophet = Prophet([])
    async with serving(drafters=[prophet]) as verifier:
        plain = await said(verifier, sampling, 50, None)
        prophet.text = Prophet(PROMPT + text_of(plain)).text
        drafted = await said(verifier, sampling, 50, SHAPE)
        num_drafts = prophet.drafts
        sized = [await said(verifier, sampling, 50, replace(SHAPE, auto=True)) for _ in range(2)]
    assert text_of(drafted) == text_of(plain)
    assert [verdict.finish for verdict in drafted] == [Finish.NOT_YET] * (len(drafted) - 1) + [Finish.LIMIT]
    assert len(drafted) < 25
    assert len(drafted) - 2 <= num_drafts <= len(drafted) - 1  # the prompt's pass comes without a draft
    assert all(verdict.path == () for verdict in drafted)
    assert drafted[0].draft_us == 0
    assert all(verdict.draft_us > 0 for verdict in drafted[1:-1])
    # Trees as large as they pay: the first ones have sizes of all kinds, over all sessions of a drafter.
    assert [text_of(verdicts) for verdicts in sized] == [text_of(plain)] * 2
    depths = [verdict.draft_levels for verdicts in sized for verdict in verdicts]
    assert depths[0] == 0
    assert max(depths) <= SHAPE.levels
    assert len(set(depths)) > 2
    assert all(len(verdict.tokens) <= verdict.draft_levels for verdicts in sized for verdict in verdicts)


def test_the_size_follows_what_passes_and_levels_cost():
    def shape(row_ms: float, level_ms: float, levels_per_pass: int = 1) -> TreeShape:
        costs = server_drafting.DraftCosts(levels_per_pass)
        for number in range(40):
            nodes = (7 * number) % 17
            levels = 1 + number % 6
            costs.record_level(3 * level_ms / 1e3, 3, levels)
            stats = StepStats(1 + nodes, 1, 0, 1, 0, (10 + row_ms * nodes) / 1e3, ((nodes, nodes // 2),))
            costs.record_pass(stats, level_ms / 1e3)
        return costs.shape(TreeTuner(costs.row_cost), TreeShape(4, 5, 16))

    cheap, dear_rows, dear_levels = shape(0.1, 1.0), shape(1.0, 1.0), shape(0.1, 8.0)
    assert cheap.min_probability < dear_rows.min_probability
    assert cheap.min_level_probability < dear_levels.min_level_probability
    blocks_of_six, blocks_of_seven = shape(0.1, 8.0, 6), shape(0.1, 8.0, 7)
    assert blocks_of_six.min_level_probability == pytest.approx(dear_levels.min_level_probability)
    assert blocks_of_seven.min_level_probability < cheap.min_level_probability  # none was a pass


async def test_features_come_along_and_a_draft_of_the_clients_goes_on(truth):
    async with serving(drafters=[Prophet(PROMPT + truth)]) as verifier, talking(verifier) as talk:
        opened = await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        assert opened.server_draft
        await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 20, features_from=0, tree=SHAPE))
        frames = []
        while not (frames and isinstance(frames[-1], Features) and frames[-1].last):
            frames.append(await talk.receive())
        features = [frame for frame in frames if isinstance(frame, Features)]
        firsts = np.cumsum([0, *(len(frame.rows) for frame in features)])
        assert [frame.first for frame in features] == firsts[:-1].tolist()
        assert firsts[-1] == HAVE + 19
        assumes = prefix_hash(PROMPT + truth[:20])
        await talk.send(Draft(2, HAVE + 19, (), truth[19], DraftTree.chain(truth[20:22]), HAVE + 19, assumes))
        assert (await talk.receive()).bonus == truth[22]
        # And the server once more, from where the client has come to.
        talk.seq = 2
        verdicts = await talk.decode(HAVE + 22, (), truth[22], 15, tree=SHAPE)
        assert text_of(verdicts) == truth[23:38]
        assert len(verdicts) < 9


async def test_the_end_of_the_context_ends_it():
    small = Target.of(build("llama"), max_context=HAVE + 15)
    text = plain_greedy(small, PROMPT, 15)
    async with serving(drafters=[Prophet(PROMPT + text, errs=1000)], on=small) as verifier:
        verdicts = await said(verifier, Sampling(), 50, SHAPE)
    assert text_of(verdicts) == text
    assert verdicts[-1].finish is Finish.CONTEXT_FULL


async def test_cancel_ends_it_even_while_it_drafts(truth):
    prophet = Prophet(PROMPT + truth)
    async with serving(drafters=[prophet]) as verifier, conversing(verifier, tap=TAP) as talk:
        (stream,) = verifier._streams
        levels = []

        def cancel_at_the_second_level() -> None:
            levels.append(None)
            if len(levels) == 2:
                stream.cancel(1)

        prophet.on_level = cancel_at_the_second_level
        verdicts = await talk.decode(0, PROMPT[:-1], PROMPT[-1], 50, tree=SHAPE)
        assert [verdict.finish for verdict in verdicts] == [Finish.NOT_YET, Finish.CANCELLED]
        assert verdicts[-1].draft_us > 0
        assert len(levels) == 2
        await talk.send(Cancel(1))  # too late: harmless
        prophet.on_level = lambda: None
        assert text_of(await talk.decode(HAVE, (), truth[0], 9, tree=SHAPE)) == truth[1:10]


def decoded(prophet: Prophet, num_sessions: int, count: int) -> list[list]:
    """The replies to a Decode of each session, all waiting when the engine thread starts."""
    loop = EngineLoop(Engine(target()), LimitsConfig())
    replies, ended = [[] for _ in range(num_sessions)], threading.Semaphore(0)

    def post(own: list, reply) -> None:
        own.append(reply)
        if isinstance(reply, RequestDone):
            ended.release()

    memory = KVMemory(target().kv)
    for own in replies:
        sequence = Sequence(memory, TAP, prophet)
        frame = Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], count, tree=SHAPE)
        loop.submit(new_request(sequence, frame, Sampler(Sampling()), ReplyRoute(partial(post, own)), 0.0))
    loop.start()
    try:
        assert all(ended.acquire(timeout=60) for _ in replies)
    finally:
        loop.stop()
    return [[reply for reply in own if isinstance(reply, Verdict)] for own in replies]


def eagle_of(directory) -> tuple[Target, Drafter]:
    """A target that lies in the directory, and a drafter for it."""
    build("llama").save_pretrained(directory)
    eagle = Eagle2(Eagle2Sizes(BlockShape(32, 4, 2, 8, 48)))
    eagle.export(directory / "eagle", target_sizes(directory))
    loaded = Target.load(str(directory))
    return loaded, *load_drafters(loaded, directory, [directory / "eagle"])


def test_sessions_are_drafted_for_in_one_pass_where_the_drafter_can(truth, tmp_path, monkeypatch):
    _, drafter = eagle_of(tmp_path)
    sizes, together = [], FeatureState.expand_together
    monkeypatch.setattr(
        FeatureState, "expand_together", staticmethod(lambda levels: sizes.append(len(levels)) or together(levels))
    )
    assert [text_of(verdicts) for verdicts in decoded(drafter, 3, 8)] == [truth[:8]] * 3
    assert sizes[:3] == [3, 3, 3]


class JointForesight(Foresight):
    """It cannot stand another one beside it."""

    @staticmethod
    def expand_together(levels) -> list[torch.Tensor]:
        if len(levels) > 1:
            raise RuntimeError("too many")
        ((state, level),) = levels
        return [state.expand(level.tokens, level.parents)]


def test_a_pass_of_several_drafts_that_fails_ends_no_session(truth):
    prophet = Prophet(PROMPT + truth, errs=1000)
    prophet.new_state = lambda: JointForesight(prophet)
    verdicts = decoded(prophet, 2, 12)
    assert [text_of(each) for each in verdicts] == [truth[:12]] * 2
    assert [len(verdict.tokens) for verdict in verdicts[0]][:3] == [0, 1, 4]  # no draft, its first level, and whole


def test_paths_that_cannot_be_placed_together_are_placed_alone(truth, monkeypatch):
    def fail(*_) -> bool:
        raise RuntimeError("no memory for all of them")

    monkeypatch.setattr("outrider_server.engine.engine._place_paths", fail)
    verdicts = decoded(Prophet(PROMPT + truth, errs=4), 3, 12)
    assert [text_of(each) for each in verdicts] == [truth[:12]] * 3


def test_drafts_take_no_longer_than_they_may_and_the_one_left_out_goes_first_then(truth, monkeypatch):
    """Each level takes a second by the clock."""
    prophet, seconds = Prophet(PROMPT + truth, errs=1000), []
    monkeypatch.setattr(server_drafting, "time", SimpleNamespace(monotonic=lambda: 1.0 + len(seconds)))
    prophet.on_level = lambda: seconds.append(None)
    verdicts = decoded(prophet, 2, 11)
    assert [text_of(each) for each in verdicts] == [truth[:11]] * 2
    assert all(len(verdict.tokens) <= 1 for each in verdicts for verdict in each)  # a level a pass, of one session
    one, two = prophet.levels[:2]
    assert prophet.levels == [one, two] * (len(prophet.levels) // 2) + [one] * (len(prophet.levels) % 2)


def test_the_largest_shapes_that_clients_ask_for_fit():
    assert ServerTree.within(64, 64, 255) == ServerTree(64, 4, 255)
    assert ServerTree.within(4, 64, 255) == ServerTree(4, 64, 255)
    assert ServerTree.within(8, 16, 12) == ServerTree(8, 12, 12)
    assert ServerTree.within(64, 64, 1) == ServerTree(1, 1, 1)
    assert max(ServerTree.within(b, 64, 255).most_expanded for b in range(1, 65)) <= MAX_EXPANDED


async def test_what_a_draft_ran_is_what_is_billed(truth):
    prophet = Prophet(PROMPT + truth, errs=1000)
    key = Principal("a", quota=Quota(tokens_per_minute=60_000))
    async with serving(drafters=[prophet]) as verifier:
        usage = verifier._quotas.of(key)
        settled, settle = asyncio.Event(), usage.settle
        paid = []
        usage.queue = lambda charge, queue=usage.queue: paid.append(charge.due) or queue(charge)
        usage.settle = lambda rows: paid.append(rows) or settle(rows) or settled.set()
        await said(verifier, Sampling(), 6, SHAPE, key)
        await asyncio.wait_for(settled.wait(), 60)
    # A pass for the prompt, then one draft of four levels: the root and three times three nodes for a tree of twelve.
    assert sum(paid) == HAVE + 6 + (1 + 3 * 3) + 12


async def test_a_drafter_without_features_serves_sessions_without(truth):
    looped = [3, 4, 5, 6] * 5
    async with serving(drafters=[LookupDrafter(VOCAB)]) as verifier, talking(verifier) as talk:
        assert (await talk.open(verifier.describe())).server_draft
        verdicts = await talk.decode(0, looped[:-1], looped[-1], 12, tree=SHAPE)
        plain = await talk.decode(0, looped[:-1], looped[-1], 12)
        assert text_of(verdicts) == text_of(plain)
        assert any(verdict.draft_us for verdict in verdicts)


REFUSED = [
    (ServerTree(0, 4, 9), Reason.MALFORMED_TREE),
    (ServerTree(65, 4, 9), Reason.MALFORMED_TREE),
    (ServerTree(4, 0, 9), Reason.MALFORMED_TREE),
    (ServerTree(4, 65, 9), Reason.MALFORMED_TREE),
    (ServerTree(4, 4, 0), Reason.MALFORMED_TREE),
    (ServerTree(4, 4, 21), Reason.TREE_TOO_LARGE),
    (ServerTree(5, 4, 4), Reason.TREE_TOO_LARGE),
    (ServerTree(4, 5, 4), Reason.TREE_TOO_LARGE),
    (ServerTree(15, 19, 20), Reason.TREE_TOO_LARGE),  # 271 nodes run for 20
]


@pytest.mark.parametrize(("tree", "reason"), REFUSED)
async def test_a_shape_that_is_none_is_refused(tree, reason):
    async with serving(drafters=[Prophet([])], max_nodes=20) as verifier, conversing(verifier, tap=TAP) as talk:
        await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 9, tree=tree))
        assert (await talk.refusal()).reason is reason


@pytest.mark.parametrize("tap", ["", TAP.info.fingerprint])
async def test_who_was_offered_none_is_told_so(tap):
    drafters = [] if tap else [Prophet([])]
    async with serving(drafters=drafters) as verifier, talking(verifier) as talk:
        assert not (await talk.open(verifier.describe(), tap=tap)).server_draft
        await talk.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 9, tree=SHAPE))
        refusal = await talk.refusal()
        assert refusal.reason is Reason.NO_SERVER_DRAFT
        assert refusal.reason.status == "FAILED_PRECONDITION"
        assert "decode without a tree" in refusal.message


async def test_a_drafter_at_fault_ends_its_session_and_nobody_elses(truth, caplog):
    prophet = Prophet(PROMPT + truth)
    async with serving(drafters=[prophet]) as verifier, talking(verifier) as good, talking(verifier) as bad:
        for talk in (good, bad):
            await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        prophet.on_level = partial(next, iter(()))  # StopIteration
        await bad.send(Decode(1, 0, tuple(PROMPT[:-1]), PROMPT[-1], 9, tree=SHAPE))
        assert (await bad.refusal()).reason is Reason.INTERNAL
        assert text_of(await good.decode(0, PROMPT[:-1], PROMPT[-1], 9)) == truth[:9]
    assert "a session failed" in caplog.text


def test_drafters_share_the_loaded_targets_weights(tmp_path):
    loaded, drafter = eagle_of(tmp_path)
    assert drafter.target.embed.data_ptr() == loaded.model.get_input_embeddings().weight.data_ptr()
    assert drafter.target.lm_head.data_ptr() == loaded.model.get_output_embeddings().weight.data_ptr()
    assert drafter.tap == TAP.info


def grown(drafter: SessionDrafter, known: tuple, shape: TreeShape) -> DraftTree:
    growth = drafter.begin(*known, shape)
    while growth.step():
        pass
    return growth.drafted().tree


def test_only_so_many_sessions_keep_a_draft_state(truth):
    """Two of three: the one that was drafted for longest ago makes its state again, and drafts as before."""
    prophet = Prophet(PROMPT + truth, errs=1000)
    sequences = [Sequence(target().kv, None, prophet) for _ in range(3)]
    drafting = server_drafting.ServerDrafting(Engine(target()), None, None, max_states=2)
    features, trees = np.zeros((HAVE - 1, TAP.info.width), np.float32), []
    known = PROMPT[:-1], PROMPT[-1:], lambda first: (first, features[first:])
    for number in (0, 1, 0, 2, 1):
        drafting._use_state(sequences[number].drafter)
        trees.append(grown(sequences[number].drafter, known, TreeShape(3, 3, 9)))
    assert trees == trees[:1] * 5
    assert [bool(sequence.drafter._tokens) for sequence in sequences] == [False, True, True]
    del sequences[1]
    gc.collect()
    assert len(drafting._with_state) == 1
