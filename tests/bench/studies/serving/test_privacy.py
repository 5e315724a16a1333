"""Facts of the corpus' questions, and the ways to keep them, on the embedded pair."""

from __future__ import annotations

import pytest

from outrider_bench.core.prompts import SEED
from outrider_bench.studies.serving.privacy import FAMILIES, KNOWN, TARGET_ALONE, WAYS, fact_of, private_turns, quality
from outrider_client.core.prompt_segments import has_private
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_models.corpus import generate
from outrider_server.engine.target import Target


@pytest.mark.parametrize("family", FAMILIES)
def test_a_question_keeps_its_words_and_hides_its_fact(family):
    for sample in generate(family, "test", SEED, 10):
        word, kind = fact_of(sample)
        turns = private_turns(sample, word, kind)
        assert ["".join(part.text for part in turn["content"]) for turn in turns] == [
            m.content for m in sample.messages
        ]
        assert any(has_private(turn["content"]) for turn in turns)
        assert not any(word in part.text.split() for turn in turns for part in turn["content"] if not part.private)


@pytest.mark.slow
async def test_features_of_the_safe_part_help():
    target = Target.load(str(target_dir()))
    result = await quality(target_dir(), drafter_dir("moa"), 1, 24, target, lambda *_: None)
    assert set(WAYS) | {TARGET_ALONE} < set(result.shares)
    everything, safe, nothing = (sum(result.agreement[name].values()) for name in KNOWN)
    assert everything > safe > nothing
