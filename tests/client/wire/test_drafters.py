"""Drafters of every family and layout through the client's own loop and the real server: the plain loop's text."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from outrider_bench.core.pair import in_process
from outrider_bench.core.prompts import spread_questions
from outrider_client import AsyncClient, Client, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_client.core.events import Cycle
from outrider_client.models.local_models import LocalModels
from outrider_drafters.load import load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_netsim import Link, profile_named
from outrider_proto.frames import Draft
from outrider_proto.tree import DraftTree
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import in_turn, slow
from ..answers import plain, replayed

NEW = 32
PROMPT = tuple(range(10, 50))
SAMPLED = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 5}
LAYOUTS = {  # of the drafters there: their target, and whether their trees branch
    "moa_tli0": ("target_tiny", True),
    "eagle2_llama": ("target_l4", True),
    "eagle3_llama": ("target_l8", True),
    "deepspec_eagle3_3taps": ("target_l8", True),
    "medusa_v01": ("target_vicuna_tiny", True),
    "hydra_mlp": ("target_vicuna_tiny", True),
    "dflash_zlab": ("target_l8", True),
    "dflash_zlab,ddtree=0": ("target_l8", False),
    "peagle_speculators": ("target_l8", False),
    "peagle_speculators,ddtree=12": ("target_l8", True),
    "dspark_deepspec": ("target_l8", True),
    "dspark_deepspec,ddtree=0": ("target_l8", False),
    "dspark_deepspec,ddtree=0,confidence=0.4": ("target_l8", False),
    "dspark_deepspec,ddtree=12,confidence=0.4": ("target_l8", True),
    "lookup": ("target_tiny", False),
    "lookup,ngram=2": ("target_tiny", False),
    "independent": ("target_tiny", True),
}


def drafter_named(golden: Path, name: str) -> str:
    case, comma, options = name.partition(",")
    places = {"lookup": "lookup", "independent": golden / "target_vicuna_tiny"}
    return f"{places.get(case, golden / case / 'drafter')}{comma}{options}"


async def drafted(
    target: Path, drafter: str | Path, mode: str = "stop-and-wait", *, opening: bool = True
) -> list[DraftTree]:
    """The trees of an answer, whose text has to be the plain loop's; a sampled one has to be the streamed one."""
    config = ClientConfig(target=target, drafter=str(drafter), max_new_tokens=NEW, mode=mode, opening=opening)
    async with in_process(target, config) as pair, pair.client() as client:
        events = [event async for event in client.generate(PROMPT)]
        late = await client.complete(PROMPT, wait_for_features=False)
        sampled = await client.complete(PROMPT, **SAMPLED)
        streamed = await client.complete(PROMPT, mode="stream", **SAMPLED)
    assert tuple(replayed(events)) == late.token_ids == plain(target, PROMPT, NEW)
    assert sampled.token_ids == streamed.token_ids
    return [one.request.tree for one in events if isinstance(one, Cycle) and isinstance(one.request, Draft)]


@pytest.mark.parametrize(("drafter", "mode"), in_turn(list(LAYOUTS), ["stop-and-wait", "proactive", "pipelined"]))
async def test_greedy_answers_are_the_plain_loops(drafter, mode, golden):
    target, branches = LAYOUTS[drafter]
    trees = await drafted(golden / target, drafter_named(golden, drafter), mode)
    assert any(len(tree) for tree in trees)
    assert any(len(set(tree.parents)) < len(tree) for tree in trees) == branches


@pytest.mark.parametrize("mode", ["pipelined", *slow("proactive")])
async def test_blocks_drafted_ahead_come_true_and_change_nothing(mode):
    """On a trained drafter, over a link on which its verdicts take a while."""
    config = ClientConfig(target=target_dir(), drafter=str(drafter_dir("dspark")), max_new_tokens=64, mode=mode)
    target, sampling = Target.load(str(target_dir())), {"temperature": 2.0, "seed": 5}
    prompt = spread_questions(LocalModels.load(config), 1)[0].prompt
    expected = plain(target_dir(), tuple(prompt), 64)
    async with (
        Server(Verifier(target, [load_tap(str(drafter_dir("dspark")), target_dir())])) as server,
        Link(profile_named("paper-5g"), server.address, "proxy", seed=1) as link,
        AsyncClient(replace(config, server=link.address)) as client,
    ):
        completion = await client.complete(prompt)
        sampled = await client.complete(prompt, **sampling)
        streamed = await client.complete(prompt, mode="stream", **sampling)
    assert completion.token_ids == expected
    assert completion.statistics.forecasts > 0
    assert completion.statistics.hit_rate > 0
    assert sampled.token_ids == streamed.token_ids != expected


@pytest.mark.parametrize("drafter", [*list(LAYOUTS)[:1], *slow(*list(LAYOUTS)[1:])])
async def test_answers_side_by_side_are_those_of_one_at_a_time(drafter, golden):
    """Eight threads over one client and eight tasks over another share a drafter; other answers are given up."""
    target, source = golden / LAYOUTS[drafter][0], drafter_named(golden, drafter)
    prompts = [tuple(range(first, first + 9 + 3 * first)) for first in range(10, 18)]
    expected = [plain(target, prompt, 12) for prompt in prompts]
    taps = [tap for tap in [load_tap(source, target)] if tap is not None]
    async with Server(Verifier(Target.load(str(target)), taps)) as server:
        patient = {"patience": Patience(floor_s=1.0), "wait_for_link_s": 30}  # this machine may be busy
        pair = {"target": target, "drafter": source, "max_new_tokens": 12, "mode": "proactive"}
        config = ClientConfig(server.address, **pair, **patient)
        models = LocalModels.load(config)
        with Client(config, models=models) as blocking, ThreadPoolExecutor(len(prompts)) as threads:
            async with AsyncClient(config, models=models) as client:
                given_up = [asyncio.create_task(client.complete(prompt[:5])) for prompt in prompts[:3]]
                of_tasks = asyncio.gather(*map(client.complete, prompts))
                await anext(aiter(client.generate(prompts[0])))
                for task in given_up:
                    task.cancel()
                of_threads = [asyncio.wrap_future(threads.submit(blocking.complete, prompt)) for prompt in prompts]
                answers = [*await of_tasks, *await asyncio.gather(*of_threads)]
                assert all(task.cancelled() for task in given_up)
    assert [answer.token_ids for answer in answers] == 2 * expected
