"""Trees of automatic size: who chooses it, and an answer that is the target's whatever it is."""

from __future__ import annotations

import pytest

from outrider_client import Client, ClientConfig
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.events import Committed, Cycle
from outrider_drafters.contracts.tree_choices import TreeChoices
from outrider_proto.errors import UsageError
from outrider_proto.frames import Draft


@pytest.mark.parametrize("mode", ["stop-and-wait", "proactive", "pipelined", "auto"])
def test_answers_are_the_targets(mode, verifier, models, fast, language):
    sizes = set()
    with Client(fast, models=models, transport=LocalTransport(verifier.describe, verifier.session)) as client:
        for prompt in ([5, 9, 12, 3], [7, 9], [1, 2, 3]):
            events = list(client.generate(prompt, mode=mode, tree="auto", shape=None))
            tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
            assert tuple(tokens) == language.answer(prompt, 40)
            drafts = [
                event.request for event in events if isinstance(event, Cycle) and isinstance(event.request, Draft)
            ]
            sizes |= {len(draft.tree) for draft in drafts} - {0}
    assert mode == "auto" or len(sizes) > 1


@pytest.mark.parametrize("mode", ["stop-and-wait", "proactive", "pipelined"])
async def test_trees_shrink_as_a_busy_server_asks_and_the_text_stays(connect, verifier, language, mode):
    verifier.tree_budget = 2
    events = [event async for event in connect().generate([5, 9, 12, 3], mode=mode)]
    tokens = [token for event in events if isinstance(event, Committed) for token in event.tokens]
    assert tuple(tokens) == language.answer([5, 9, 12, 3], 40)
    sizes = [len(request.tree) for request in verifier.requests if isinstance(request, Draft)]
    assert sizes[0] == 0
    assert max(sizes[4:]) == 2  # those before were made without a verdict's wish
    assert events[-1].statistics.tree_budget == 2


def test_fixed_choices_leave_nothing_to_choose():
    with pytest.raises(UsageError, match="leave one of them out"):
        ClientConfig(tree="auto", shape=TreeChoices(((0,), (1,))))
    with pytest.raises(UsageError, match="tree='huge'"):
        ClientConfig(tree="huge")
