"""Block drafters that read several layers through the real server: greedy text is the plain loop's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gguf_dflash import DFlashWriter

from outrider_bench.core.pair import in_process
from outrider_bench.core.prompts import spread_questions
from outrider_client import AsyncClient, ClientConfig
from outrider_client.core.events import Cycle
from outrider_client.models.local_models import LocalModels
from outrider_drafters.load import load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_netsim import Link, profile_named
from outrider_proto.frames import Draft
from outrider_proto.tree import DraftTree
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import in_turn, slow

NEW = 32
PROMPT = tuple(range(10, 40))


@pytest.fixture(scope="module")
def plain(golden) -> tuple[int, ...]:
    return tuple(plain_greedy(Target.load(str(golden / "target_l8")), PROMPT, NEW))


async def drafted(golden, drafter, plain, mode="stop-and-wait") -> list[DraftTree]:
    """The trees of an answer, whose text has to be the plain loop's."""
    target = golden / "target_l8"
    config = ClientConfig(target=target, drafter=str(drafter), max_new_tokens=NEW, mode=mode)
    async with in_process(target, config) as pair, pair.client() as client:
        events = [event async for event in client.generate(PROMPT)]
        completion = await client.complete(PROMPT)
    assert completion.token_ids == plain
    return [one.request.tree for one in events if isinstance(one, Cycle) and isinstance(one.request, Draft)]


BRANCHES = {
    "dflash_zlab": True,
    "dflash_zlab,ddtree=0": False,
    "peagle_speculators": False,
    "peagle_speculators,ddtree=12": True,
    "dspark_deepspec": True,
    "dspark_deepspec,ddtree=0": False,
    "dspark_deepspec,ddtree=0,confidence=0.4": False,
    "dspark_deepspec,ddtree=12,confidence=0.4": True,
}


@pytest.mark.parametrize(("drafter", "mode"), in_turn(list(BRANCHES), ["stop-and-wait", "proactive", "pipelined"]))
async def test_greedy_answers_are_the_plain_loops(drafter, mode, golden, plain):
    case, comma, options = drafter.partition(",")
    trees = await drafted(golden, f"{golden / case / 'drafter'}{comma}{options}", plain, mode)
    assert any(len(tree) for tree in trees)
    assert any(len(set(tree.parents)) < len(tree) for tree in trees) == BRANCHES[drafter]


@pytest.mark.parametrize("mode", ["pipelined", *slow("proactive")])
async def test_blocks_drafted_ahead_come_true_and_change_nothing(mode):
    """On a trained drafter, over a link on which its verdicts take a while."""
    config = ClientConfig(target=target_dir(), drafter=str(drafter_dir("dspark")), max_new_tokens=64, mode=mode)
    target, sampling = Target.load(str(target_dir())), {"temperature": 2.0, "seed": 5}
    prompt = spread_questions(LocalModels.load(config), 1)[0].prompt
    expected = tuple(plain_greedy(Target.load(str(target_dir())), prompt, 64))
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


async def test_a_gguf_file_drafts_as_the_directory_it_was_made_from(golden, plain, tmp_path):
    directory = golden / "dflash_zlab" / "drafter"
    trees = await drafted(golden, DFlashWriter(directory, tmp_path / "drafter.gguf").write(), plain)
    assert any(len(tree) for tree in trees)
    assert trees == await drafted(golden, directory, plain)
