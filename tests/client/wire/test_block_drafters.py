"""Block drafters that read several layers through the real server: greedy text is the plain loop's."""

from __future__ import annotations

import pytest

from outrider_bench.core.pair import in_process
from outrider_client import ClientConfig
from outrider_client.core.events import Cycle
from outrider_proto.frames import Draft
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

NEW = 32
PROMPT = tuple(range(10, 40))


@pytest.fixture(scope="module")
def plain(golden) -> tuple[int, ...]:
    return tuple(plain_greedy(Target.load(str(golden / "target_l8")), PROMPT, NEW))


@pytest.mark.parametrize("mode", ["stop-and-wait", "proactive"])
@pytest.mark.parametrize(
    ("case", "options", "branches"),
    [
        ("dflash_zlab", "", True),
        ("dflash_zlab", ",ddtree=0", False),
        ("peagle_speculators", "", False),
        ("peagle_speculators", ",ddtree=12", True),
        ("dspark_deepspec", "", True),
        ("dspark_deepspec", ",ddtree=0", False),
        ("dspark_deepspec", ",ddtree=0,confidence=0.4", False),
        ("dspark_deepspec", ",ddtree=12,confidence=0.4", True),
    ],
)
async def test_greedy_answers_are_the_plain_loops(case, options, branches, mode, golden, plain):
    target, drafter = golden / "target_l8", f"{golden / case / 'drafter'}{options}"
    config = ClientConfig(target=target, drafter=drafter, max_new_tokens=NEW, mode=mode)
    async with in_process(target, config) as pair, pair.client() as client:
        events = [event async for event in client.generate(PROMPT)]
        completion = await client.complete(PROMPT)
    assert completion.token_ids == plain
    trees = [one.request.tree for one in events if isinstance(one, Cycle) and isinstance(one.request, Draft)]
    assert any(len(tree) for tree in trees)
    assert any(len(set(tree.parents)) < len(tree) for tree in trees) == branches
