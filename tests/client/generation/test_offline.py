"""Without the target: who writes, what ends in circles, and what waits; and a busy machine, which is no outage."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time

import pytest

from outrider_client.connection.policy import Patience
from outrider_client.core.config import ClientConfig
from outrider_client.core.events import WAITING, Committed, Private, Unverified, Warned
from outrider_client.core.prompt import Segment
from outrider_client.models.local_models import LocalModels
from outrider_client.models.offline_drafter import choose_offline
from outrider_drafters.contracts.tap import NO_FEATURES
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_proto.errors import UsageError

from ..answers import replayed
from ..conftest import VOCAB, FakeDrafter, Language, fake_models
from .test_runner import MODES, PROMPT, collect

CIRCLE = tuple(range(30, 40))


@dataclasses.dataclass
class Circling(Language):
    """Goes round in circles of ten tokens, from the twentieth on."""

    def following(self, tokens):
        return CIRCLE[len(tokens) % len(CIRCLE)] if len(tokens) > 20 else super().following(tokens)


def warnings(events) -> list[str]:
    return [event.message for event in events if isinstance(event, Warned)]


@pytest.mark.parametrize("mode", MODES)
async def test_where_nobody_can_write_the_link_is_waited_for(connect, verifier, language, models, mode):
    verifier.cut_before = {2}
    client = connect(models=dataclasses.replace(models, writes="no"))
    go_down = functools.partial(setattr, verifier, "down_for", 3)
    events = await collect(client, when_offline=go_down, mode=mode, last_resort="none")
    assert not any(isinstance(event, Unverified) for event in events)
    assert warnings(events) == [WAITING]
    assert replayed(events) == list(language.answer(PROMPT, 40))


async def test_what_has_the_targets_features_writes_after_the_target_alone(connect, verifier, language, models):
    """From the start another one does, and without that nobody."""
    verifier.cut_before = {2}
    follows = dataclasses.replace(models, writes="after the target")
    go_down = functools.partial(setattr, verifier, "down_for", 8)
    events = await collect(connect(models=follows), when_offline=go_down)
    assert any(isinstance(event, Unverified) for event in events)
    with pytest.raises(UsageError, match="--offline-drafter"):
        await connect(models=follows).complete(PROMPT, mode="offline")
    private = (Segment("abc"), Segment("de", private=True))
    with pytest.raises(UsageError, match="choose privacy=placeholder, or name"):
        await connect(models=follows).complete(private)
    other = dataclasses.replace(FakeDrafter(language), tap=NO_FEATURES)
    both = connect(models=dataclasses.replace(follows, offline_drafter=other))
    for prompt, reason in ((PROMPT, "unverified"), (private, "private")):
        assert (await both.complete(prompt, mode="offline", max_new_tokens=4)).reason == reason


@pytest.mark.parametrize("private", [False, True])
async def test_writing_alone_ends_in_its_first_circles(connect, language, private):
    prompt = (Segment("abcdabcd"), Segment("abcd", private=private))
    client = connect(models=fake_models(language, LookupDrafter(VOCAB)))
    events = [event async for event in client.generate(prompt, mode="offline", raw=True)]
    assert sum(isinstance(event, Unverified | Private) for event in events) == 16
    assert [message for message in warnings(events) if message.startswith("the drafter repeats itself")]


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_that_goes_round_in_circles_is_cut_where_that_is_wanted(connect, verifier, mode):
    language = verifier.language = Circling()
    client = connect(models=fake_models(language, FakeDrafter(language)))
    for wanted, reason in ((True, "repetition"), (False, "limit")):
        answer = await client.complete(PROMPT, mode=mode, max_new_tokens=120, stop_loops=wanted)
        assert answer.reason == reason
        assert answer.token_ids == language.answer(PROMPT, len(answer.token_ids))
        assert (80 <= len(answer.token_ids) < 100) == wanted
    assert (await client.complete([1, 2], mode=mode)).reason == "limit"  # the session is as it was


async def test_a_process_that_gets_no_processor_sees_no_outage(connect, language, fast):
    """Something else keeps the event loop busy for longer than a link may be silent."""
    client = connect(dataclasses.replace(fast, patience=Patience(floor_s=0.005)))

    async def hog() -> None:
        while True:
            until = time.perf_counter() + 0.03
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    beside, events = None, []
    try:
        async for event in client.generate(PROMPT, mode="stop-and-wait", max_new_tokens=12):
            if isinstance(event, Committed) and beside is None:  # until now all was quick
                beside = asyncio.create_task(hog())
            events.append(event)
    finally:
        beside.cancel()
    assert replayed(events) == list(language.answer(PROMPT, 12))
    assert events[-1].statistics.outages == 0


@pytest.mark.parametrize(
    ("fields", "writes", "other"),
    [
        ({}, "after the target", "independent"),  # moa
        ({"drafter": "eagle2"}, "no", "independent"),
        ({"drafter": "eagle2", "offline_drafter": "eagle2"}, "alone", None),
        ({"drafter": "eagle2,draft_vocab=all", "offline_drafter": "eagle2"}, "alone", None),
        ({"drafter": "independent"}, "alone", None),
        ({"drafter": "none"}, "no", None),
        ({"drafter": "lookup"}, "alone", None),
        ({"offline_drafter": "none"}, "no", None),
        ({"offline_drafter": "lookup"}, "no", "lookup"),
        ({"target": "smollm2"}, "no", None),
        ({"target": "smollm2", "drafter": "smollm2/independent"}, "no", None),
        (
            {"target": "smollm2", "drafter": "smollm2/moa", "offline_drafter": "smollm2/independent"},
            "no",
            "independent",
        ),
    ],
)
def test_the_writer_is_the_one_named_or_measured(fields, writes, other):
    config = ClientConfig(**{"target": "embedded", "drafter": "moa"} | fields)
    loaded = LocalModels.load(dataclasses.replace(config, target="embedded")) if config.target == "embedded" else None
    if loaded is not None:
        assert (loaded.writes, loaded.offline_drafter and loaded.offline_drafter.family) == (writes, other)
        return
    drafter = FakeDrafter(Language())
    choice = choose_offline(
        config, drafter, lambda source: dataclasses.replace(drafter, family=source, tap=NO_FEATURES)
    )
    assert (choice.writes, choice.other and choice.other.family.rpartition("/")[2]) == (writes, other)


def test_another_writer_that_reads_features_is_refused():
    with pytest.raises(UsageError, match="offline_drafter=eagle2: it reads the target's features"):
        LocalModels.load(ClientConfig(target="embedded", drafter="moa", offline_drafter="eagle2"))
