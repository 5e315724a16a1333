"""Several heads on one client, a head that does not fit, and what writes when no head can."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from outrider_client.core.config import ClientConfig
from outrider_client.core.events import Warned
from outrider_client.core.prompt import Segment
from outrider_client.models.local_models import LocalModels
from outrider_drafters.families.lookup.family import LookupDrafter
from outrider_drafters.families.suffix.family import SuffixDrafter
from outrider_drafters.routing.keywords import Keywords
from outrider_drafters.routing.routed_drafter import RoutedDrafter
from outrider_drafters.routing.rules import Routing
from outrider_proto.errors import UsageError

from ..conftest import VOCAB, FakeDrafter, FakeDraftState, Language, fake_models

PROMPT = [5, 9, 12, 3]
LOOP = [20, 21, 22, 23]  # a text that repeats


class Wrong(Language):
    """Never right."""

    def following(self, tokens):
        return 1 + super().following(tokens) % (VOCAB - 1)


class HeadsEndHere(FakeDraftState):
    """Drafts a few tokens past the newest feature and then nothing, as Medusa does."""

    def __init__(self, language, num_heads):
        super().__init__(language)
        self._num_heads = num_heads

    @property
    def max_levels(self):
        return max(0, self._num_heads - (len(self.tokens) - self.num_features))

    @max_levels.setter
    def max_levels(self, value):
        pass


@dataclasses.dataclass
class ShortDrafter(FakeDrafter):
    num_heads: int = 3

    def new_state(self):
        return HeadsEndHere(self.language, self.num_heads)


@dataclasses.dataclass
class Looping(Language):
    """Writes the same tokens over and over."""

    def following(self, tokens):
        return LOOP[len(tokens) % len(LOOP)]


def two_heads(language, routing: Routing, keywords: Keywords | None = None) -> LocalModels:
    """Two heads: one that knows the language and one that does not."""
    names = ("good", "bad")
    heads = RoutedDrafter([FakeDrafter(language), FakeDrafter(Wrong())], names, routing)
    models = fake_models(language, heads)
    return dataclasses.replace(models, keywords=None if keywords is None else keywords.for_heads(names))


@pytest.mark.parametrize(
    "routing", [Routing(), Routing("entropy"), Routing(gate=0.9), Routing("entropy", gate=0.5, batched=False)]
)
@pytest.mark.parametrize("mode", ["stop-and-wait", "stream"])
async def test_routing_does_not_change_the_text(connect, verifier, language, routing, mode):
    verifier.cut_before = {3, 9}
    client = connect(models=two_heads(language, routing))
    for prompt in (PROMPT, [*PROMPT, 7, 8]):
        assert (await client.complete(prompt, mode=mode)).token_ids == language.answer(prompt, 40)


async def test_after_64_drafts_that_were_refused_it_is_told_what_to_try(connect, language):
    drafter = FakeDrafter(Wrong())
    drafter.hint = "give it the option a=b"
    client, warnings = connect(models=fake_models(language, drafter)), []
    for last in range(5):
        async with contextlib.aclosing(client.generate([*PROMPT, last], mode="stop-and-wait")) as events:
            warnings += [event.message async for event in events if isinstance(event, Warned)]
    (warning,) = warnings
    assert " of 64 verdicts" in warning
    assert warning.endswith("If it was made for this target, give it the option a=b")


async def test_words_choose_the_head(connect, language):
    keywords = Keywords({"good": ("hello",), "bad": ("goodbye",)})
    client = connect(models=two_heads(language, Routing("keywords"), keywords))
    for text, share in [("say goodbye", {"good": 0, "bad": 1}), ("say hello", {"good": 1, "bad": 0})]:
        completion = await client.complete(text.replace(" ", "_"), raw=True)  # letters are all this language has
        assert completion.statistics.heads.shares == share
        assert completion.statistics.heads.extra_drafts == 0


@pytest.mark.parametrize(("last_resort", "num_written", "num_copied"), [("lookup", 16, 13), ("none", 3, 0)])
async def test_copying_goes_on_where_heads_end(connect, verifier, last_resort, num_written, num_copied):
    """Without features a drafter of three heads writes three tokens; copies in a circle end after 16."""
    language = verifier.language = Looping()
    prompt = [20, 21, 22, 23, 20, 21]
    config = {"mode": "offline", "last_resort": last_resort, "max_new_tokens": 36, "raw": True}
    models = fake_models(language, ShortDrafter(language, num_heads=len(prompt) + 3))
    completion = await connect(models=models).complete(prompt, **config)
    assert len(completion.token_ids) == num_written
    assert completion.statistics.copied == num_copied
    assert completion.token_ids[num_written - num_copied :] == language.answer(
        [*prompt, *completion.token_ids[: num_written - num_copied]], num_copied
    )


@pytest.mark.parametrize("drafter", [None, LookupDrafter(VOCAB), SuffixDrafter(VOCAB)])
async def test_a_chat_is_not_answered_with_a_copy_of_itself(connect, language, drafter):
    """Its system prompt, most often: a template begins every message alike."""
    client = connect(models=fake_models(language, drafter))
    asked = client.complete([1, 2, 3, 4, 2, 3], mode="offline")
    if drafter is None:
        with pytest.raises(UsageError, match="name one that does"):
            await asked
    else:
        recited = await asked
        assert (recited.token_ids, recited.reason) == ((), "link")
        with pytest.raises(UsageError, match="this drafter only copies"):
            await client.complete((Segment("abab"), Segment("abab", private=True)))


def test_heads_are_loaded_together(golden):
    head = golden / "eagle2_llama" / "drafter"
    config = ClientConfig(target=golden / "target_l4", drafter=head, other_heads=(str(head), "lookup"))
    models = LocalModels.load(config)
    assert isinstance(models.drafter, RoutedDrafter)
    assert models.drafter.tap.fingerprint == models.open_frame().tap
    assert models.drafter.names == (str(head), f"{head}#2", "lookup")
    assert not models.drafter.batched
    assert LocalModels.load(dataclasses.replace(config, other_heads=())).drafter.family == "eagle2"
