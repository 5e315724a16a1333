"""The client against the real server over gRPC: the text is the target's own, in every mode and through outages."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest

from outrider_client import AsyncClient, ClientConfig
from outrider_client.controller.mode_controller import ModeController
from outrider_client.core.events import Cycle, Unverified
from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB, write_draft_vocab
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_netsim import Link, profile_named
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import slow
from ..answers import PAIRS, golden_config, plain, replayed, through_an_outage

NEW = 60
PROMPTS = [(3, 7, 11, 2, 9), tuple(range(10, 50)), (200,)]
CHOICES = {"max_new_tokens": NEW, "shape": TreeShape(4, 4, 14)}


@pytest.fixture(params=PAIRS)
def base_config(golden, request) -> ClientConfig:
    return golden_config(golden, request.param, **CHOICES)


@pytest.fixture
def moa_config(golden) -> ClientConfig:
    return golden_config(golden, **CHOICES)


def server_for(config: ClientConfig) -> Server:
    target, tap = served(str(config.target), str(config.drafter))
    return Server(Verifier(target, [tap]))


@functools.cache
def served(target: str, drafter: str):
    return Target.load(target), load_tap(drafter, target)


def at(config: ClientConfig, address: str) -> ClientConfig:
    return dataclasses.replace(config, server=address)


@pytest.mark.parametrize("mode", ["stop-and-wait", "auto", *slow("stream", "proactive", "pipelined")])
async def test_greedy_answers_are_the_plain_loops(base_config, mode):
    async with server_for(base_config) as server, AsyncClient(at(base_config, server.address)) as client:
        for prompt in PROMPTS:
            completion = await client.complete(prompt, mode=mode)
            assert completion.token_ids == plain(base_config.target, prompt, NEW)
            statistics = completion.statistics
            assert statistics.outages == 0
            assert statistics.bytes_up > 0
            assert statistics.rtt_ms > 0
            if mode != "auto":
                assert (statistics.mean_acceptance_length > 1.2) == (mode != "stream")
            assert sum(dataclasses.astuple(statistics.split_ms)) > 0


@pytest.mark.parametrize("mode", ["auto", *slow("stop-and-wait", "proactive", "pipelined", "stream")])
async def test_another_sampling_costs_no_connection(moa_config, mode):
    """Each seed's text is the one of a stream that was opened with it, whatever was sampled before."""
    choices = [
        {"temperature": 0.9, "seed": 1},
        {},
        {"temperature": 0.9, "top_k": 9, "seed": 2},
        {"temperature": 0.9, "seed": 1},
    ]
    async with server_for(moa_config) as server:
        config = at(moa_config, server.address)
        expected = []
        for chosen in choices[:3]:
            async with AsyncClient(config) as client:
                expected.append((await client.complete(PROMPTS[0], mode="stream", **chosen)).token_ids)
        assert len(set(expected)) == 3
        async with AsyncClient(config) as client:
            links = []
            for chosen, tokens in zip(choices, [*expected, expected[0]], strict=True):
                completion = await client.complete(PROMPTS[0], mode=mode, **chosen)
                assert completion.token_ids == tokens
                links.append(client._context.session.link)
            assert all(link is links[0] for link in links)


@pytest.mark.parametrize("mode", ["pipelined", *slow("stop-and-wait")])
async def test_features_may_change_their_codec_amid_an_answer(moa_config, mode, monkeypatch):
    """Back and forth, every third time that somebody asks."""
    asked = itertools.count()
    changing = property(lambda controller: None if next(asked) // 3 % 2 == 0 else "leaner")
    monkeypatch.setattr(ModeController, "codec", changing)
    config = dataclasses.replace(moa_config, codec="lean")
    async with server_for(config) as server, AsyncClient(at(config, server.address)) as client:
        for prompt in PROMPTS:
            events = [event async for event in client.generate(prompt, mode=mode)]
            assert tuple(replayed(events)) == plain(config.target, prompt, NEW)
            assert {event.request.codec for event in events if isinstance(event, Cycle)} == {None, "leaner"}


async def test_a_draft_vocabulary_changes_no_answer(base_config, tmp_path):
    """Greedy or sampled, with every other token of the answer in it: those are drafted, the others come as bonus."""
    drafted = sorted({token for prompt in PROMPTS[:2] for token in plain(base_config.target, prompt, NEW)})[::2]
    write_draft_vocab(tmp_path, drafted)
    source = f"{base_config.drafter},draft_vocab={tmp_path / DRAFT_VOCAB}"
    config = dataclasses.replace(base_config, drafter=source)
    sampling = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 5}
    accepted = 0.0
    async with server_for(config) as server, AsyncClient(at(config, server.address)) as client:
        for prompt in PROMPTS[:2]:
            events = [event async for event in client.generate(prompt, mode="stop-and-wait")]
            assert tuple(replayed(events)) == plain(config.target, prompt, NEW)
            trees = [event.request.tree for event in events if isinstance(event, Cycle) and event.request.tree]
            assert trees
            assert {token for tree in trees for token in tree.tokens} <= set(drafted)
            accepted += events[-1].statistics.mean_acceptance_length - 1
            sampled = await client.complete(prompt, mode="stop-and-wait", **sampling)
            streamed = await client.complete(prompt, mode="stream", **sampling)
            assert sampled.token_ids == streamed.token_ids
    assert accepted > 0


@pytest.mark.parametrize("mode", ["stop-and-wait", *slow("stream")])
@pytest.mark.parametrize("cut_at", [10, *slow(1, 30)])  # what is on its way by then leaves the drafter enough to write
async def test_verified_answer_survives_a_cut_link(moa_config, mode, cut_at, engine):
    async with (
        server_for(moa_config) as server,
        Link(profile_named("paper-5g"), server.address, engine, seed=1) as link,
        AsyncClient(at(moa_config, link.address)) as client,
    ):
        # As many tokens are left wherever it is cut: a stream is far ahead of what has come.
        whole = NEW + cut_at
        events, outage = await through_an_outage(client, link, PROMPTS[0], cut_at, 5, mode=mode, max_new_tokens=whole)
        tokens = replayed(events)
        assert tuple(tokens) == plain(moa_config.target, PROMPTS[0], whole)
        assert events[-1].reason == "limit"
        assert events[-1].statistics.unverified == 0
        assert outage == 1
        assert any(isinstance(event, Unverified) for event in events)
